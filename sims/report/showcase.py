"""The pictures at the top: what attackers make of single messages, undefended and defended."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from sims.report.book import Images
from sims.report.reconstruction_strips import encode_data_url, tile_images
from sims.report.summary import Summary
from sims.report.verdict import percent

SHOWN = 5
"""Images side by side: as many as a narrow screen has room for."""
ORDINALS = ("first", "second", "third")


class Picture(NamedTuple):
    """One small image, what it is for who cannot see it, and what stands below it."""

    source: str
    description: str
    note: str = ""
    is_right: bool = False


class PictureRow(NamedTuple):
    """Pictures side by side, one for each message."""

    name: str
    pictures: list[Picture]


class Panel(NamedTuple):
    """Reconstructions and guesses of one variant's messages."""

    title: str
    rows: list[PictureRow]


def make_showcase(featured: Mapping[str, Summary]) -> list[Panel]:
    """Return a panel for each featured variant that kept pictures, those of its first run."""
    panels = (make_panel(summary) for summary in featured.values())
    return [panel for panel in panels if len(panel.rows) > 1]


def make_panel(summary: Summary) -> Panel:
    """Return originals, the worst attack's images, the optimal attacker's likeliest ones."""
    run = summary.runs[0]
    if not (run.images or run.guesses):
        return Panel(summary.label, [])
    guesses = {name: value[:SHOWN].numpy() for name, value in run.guesses.items()}
    rebuilt = {name: images[:SHOWN] for name, images in run.images.items()}
    originals = (guesses or rebuilt)["targets"]
    rows = [PictureRow("sent", [Picture(source, "original") for source in encode(originals)])]
    attack = next((name for name in summary.worst_attacks if name in rebuilt), None)
    if attack and np.array_equal(rebuilt["targets"], originals[: len(rebuilt["targets"])]):
        pictures = [Picture(source, f"rebuilt by {attack}") for source in encode(rebuilt[attack])]
        rows.append(PictureRow(f"rebuilt ({attack})", pictures))
    ranked = guesses["guesses"].swapaxes(0, 1) if guesses else ()
    for rank, (ordinal, images) in enumerate(zip(ORDINALS, ranked, strict=False)):
        pictures = []
        for number, source in enumerate(encode(images)):
            is_right = bool(np.array_equal(images[number], originals[number]))
            share = percent(float(guesses["probabilities"][number, rank]))
            verdict = "right" if is_right else "wrong"
            description = f"{ordinal} guess, {verdict}, probability {share}"
            pictures.append(Picture(source, description, share, is_right))
        rows.append(PictureRow(f"{ordinal} guess", pictures))
    return Panel(summary.label, rows)


def encode(images: Images) -> list[str]:
    """Return each image as a PNG in a data URL."""
    return [encode_data_url(tile_images(image[None])) for image in images]
