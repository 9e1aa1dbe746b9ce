"""Page of compared cuts: one file, no network needed."""

from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
from jaxtyping import Float
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure
from torch import Tensor

from fedcel.leakage import CutComparison, LeakMaps, format_large
from sims.report.chart import COLOURS, INK, METADATA, STYLE, WIDTH, escape_label
from sims.report.cuts_table import tabulate_cuts
from sims.report.page import Part, inline_svg
from sims.report.reconstruction_strips import Strip, limit_strips
from sims.report.templates import render_template

LEAST_AREA, MOST_AREA = 30.0, 500.0
"""Square points of the marks of the shortest and the longest message."""
LINEAR_BITS = 0.1
"""Bits below which the chart's axis is even."""
Pictures = Mapping[str, tuple[Float[Tensor, "T C H W"], LeakMaps | None]]
"""Rebuilt images and maps, by layer."""


def render_cuts(
    comparison: CutComparison,
    title: str,
    conditions: str,
    *,
    originals: Float[Tensor, "T C H W"] | None,
    pictures: Pictures,
    attacks: Mapping[str, float],
    versions: Mapping[str, str],
) -> str:
    """Render the page as HTML.

    `conditions` names model and images in a sentence; `attacks` are squared errors by layer.
    """
    unit, points = comparison.unit, comparison.limits.max_loss
    accuracy = (
        f"Without noise the model is right in {comparison.accuracy:.1%} of cases."
        if comparison.is_label_accuracy
        else "The labels have nothing to do with what the model answers, so accuracy is agreement "
        "with its answers without noise."
    )
    parts = [
        Part(
            "Leak against operations on the device",
            "Down and left is better. The area of a mark grows with the bytes of a message. Filled "
            "marks are cuts for which no other leaks less at no more operations.",
            plots=[(f"{unit} at the most noise that accuracy allows", draw_cuts(comparison))],
        ),
        Part(
            "Cuts",
            "Each cut has the most noise that keeps the rest of the model within "
            f"{points:g} percentage point{'s' * (points != 1)} of accuracy, in units of the "
            "features' root mean square. “bits” are those of the linearised channel: an estimate "
            "that does not saturate. “exact bits” count among the given images, so they have a "
            "maximum. “unseen images” limits them for the population. “MSE” is the estimated "
            "squared error of the best reconstruction. “→” marks the recommended cut, “·” one for "
            "which no other leaks less at no more operations.",
            tables=[tabulate_cuts(comparison, attacks)],
        ),
    ]
    if originals is not None:
        parts.append(show_pictures(originals, pictures))
    return render_template(
        "report/cuts.html.jinja",
        title=title,
        sentence=comparison.sentence,
        conditions=f"{conditions} {accuracy}",
        parts=[part._replace(is_open=True) for part in parts],
        versions=", ".join(f"{name} {version}" for name, version in versions.items()),
    )


def show_pictures(originals: Float[Tensor, "T C H W"], pictures: Pictures) -> Part:
    """Return reconstructions and leak maps at each cut, the maps on one scale of grey."""
    strips = [Strip("", "originals", originals.double().numpy())]
    drawn_maps = {layer: maps for layer, (_, maps) in pictures.items() if maps is not None}
    scale = max((float(maps.prior_deviation.max()) for maps in drawn_maps.values()), default=1.0)
    for layer, (rebuilt, maps) in pictures.items():
        strips.append(Strip(layer, "rebuilt", rebuilt.double().numpy()))
        if maps is not None:
            strips.append(Strip(layer, "unknown", (maps.deviation / scale).numpy()))
    note = (
        "Rebuilt by an attacker who owns the other images. “unknown” shows how much of each pixel "
        "the message leaves open, by the linearised channel, on one scale for all cuts: black is "
        "known, white is as unknown as the image's most variable pixel without a message."
    )
    return Part("What an attacker reconstructs", note, strips=limit_strips(strips)[0])


def draw_cuts(comparison: CutComparison) -> Markup:
    """Draw leak against operations as SVG."""
    points = [cut for cut in (*comparison.cuts, comparison.answer) if np.isfinite(cut.leak_bits)]
    pareto, recommended = comparison.pareto, comparison.recommended
    roots = np.sqrt([cut.bytes for cut in points])
    areas = LEAST_AREA + (MOST_AREA - LEAST_AREA) * roots / roots.max()
    with rc_context(STYLE | {"svg.hashsalt": "cuts"}):
        figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
        axes = figure.subplots()
        middle = (min(cut.macs for cut in points) + max(cut.macs for cut in points)) / 2
        for cut, area in zip(points, areas, strict=True):
            colour = COLOURS[1 if cut is recommended else 2 if cut.is_answer else 0]
            fill = colour if cut in pareto else "none"
            axes.scatter(
                cut.macs, cut.leak_bits, area, facecolor=fill, edgecolor=colour, alpha=0.75
            )
            # Deep cuts stand above each other: the name is beside the mark, within the axes.
            is_left, distance = cut.macs < middle, 4 + area**0.5 / 2
            place: dict[str, Any] = {
                "xytext": (distance if is_left else -distance, 0),
                "textcoords": "offset points",
                "ha": "left" if is_left else "right",
            }
            axes.annotate(
                escape_label(cut.layer), (cut.macs, cut.leak_bits), va="center", fontsize=9,
                color=INK, **place
            )  # fmt: skip
        axes.set_yscale("symlog", linthresh=LINEAR_BITS)
        axes.set(xlabel="operations on the device", ylabel=comparison.unit)
        axes.xaxis.set_major_formatter(lambda value, _: format_large(value))
        axes.margins(0.12, 0.18)
        file = BytesIO()
        figure.savefig(
            file, format="svg", transparent=True, metadata=dict.fromkeys(METADATA["svg"])
        )
    return inline_svg(file.getvalue().decode())
