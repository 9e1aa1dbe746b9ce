"""Leak maps below their images: which pixels a message exposes, and what stays unknown."""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from jaxtyping import Float

from sims.report.reconstruction_strips import GUESSED, Strip, list_guesses
from sims.report.summary import Summary

MAPS_NOTE = (
    "“Exposed” is the diagonal of the message's Fisher information about the pixels, on a "
    "logarithmic scale; “unknown” is the standard deviation of each pixel given the message, and "
    "“unknown without a message” that given the class only. Bright is much; each scale is the "
    "same for all rows: exposed from {low:.2g} to {high} per squared pixel, unknown from 0 "
    "to {deviation:.2g}."
)
SENT = "sent"
"""Name of the strip of the images themselves."""
DECADES = 3
"""Powers of ten that the scale of the information spans."""
Maps = Float[np.ndarray, "T C H W"]


def draw_leak_strips(
    maps: Sequence[tuple[str, Sequence[Strip], Maps, Maps]], prior: Maps
) -> tuple[list[Strip], str]:
    """Return pictures and maps of several encoders in one colour scale each, and their note.

    Args:
        maps: Of each encoder its name, strips that come first, information and deviation.
        prior: Deviation of each pixel without a message, (1, C, H, W).
    """
    high = max(float(sum_channels(information).max()) for _, _, information, _ in maps)
    deepest = max(float(mean_channels(part).max()) for part in (prior, *(m[3] for m in maps)))
    strips: list[Strip] = []
    for name, pictures, information, deviation in maps:
        exposed = sum_channels(information) / (high or 1)
        share = 1 + np.log10(np.maximum(exposed, 10.0**-DECADES)) / DECADES
        unknown = mean_channels(deviation) / (deepest or 1)
        strips += [s if s.name == SENT else s._replace(group=name) for s in pictures]
        strips.append(Strip(name, "exposed", paint(share)))
        strips.append(Strip(name, "unknown", paint(unknown)))
    count = len(maps[0][2])
    without = np.broadcast_to(mean_channels(prior) / (deepest or 1), (count, *prior.shape[2:]))
    strips.append(Strip("", "unknown without a message", paint(without)))
    shown = f"{high:,.0f}" if high >= 10 else f"{high:.2g}"
    return strips, MAPS_NOTE.format(low=high / 10**DECADES, high=shown, deviation=deepest)


def list_leak_strips(summaries: Sequence[Summary]) -> tuple[list[Strip], str]:
    """Return the maps of each variant's first run, nothing where no run has them."""
    maps: list[tuple[str, Sequence[Strip], Maps, Maps]] = []
    priors: list[Maps] = []
    for summary in summaries:
        guesses = summary.runs[0].guesses
        if "leak-information" not in guesses:
            continue
        first = slice(GUESSED)
        rebuilt = [s for s in list_guesses(summary) if s.name.startswith((SENT, "rebuilt"))]
        pictures = rebuilt if not maps else [s for s in rebuilt if s.name != SENT]
        information, deviation = (
            guesses[key][first].double().numpy() for key in ("leak-information", "leak-deviation")
        )
        maps.append((summary.label, pictures, information, deviation))
        priors.append(guesses["prior-deviation"].double().numpy()[None])
    return draw_leak_strips(maps, priors[0]) if maps else ([], "")


def sum_channels(information: Maps) -> Float[np.ndarray, "T H W"]:
    """Add up the information of a pixel's channels."""
    totals: Float[np.ndarray, "T H W"] = information.sum(1)
    return totals


def mean_channels(deviation: Maps) -> Float[np.ndarray, "T H W"]:
    """Return the root mean square of a pixel's channels."""
    means: Float[np.ndarray, "T H W"] = np.sqrt(np.square(deviation).mean(1))
    return means


def paint(shares: Float[np.ndarray, "T H W"]) -> Float[np.ndarray, "T 3 H W"]:
    """Return numbers in [0, 1] as colours, dark to bright."""
    colours = mpl.colormaps["inferno"](np.clip(shares, 0, 1))[..., :3]
    return np.ascontiguousarray(colours.transpose(0, 3, 1, 2))
