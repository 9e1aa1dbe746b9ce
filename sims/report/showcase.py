"""The pictures at the top: what attackers make of single messages, undefended and defended."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from sims.report.book import Images
from sims.report.reconstruction_strips import encode_data_url, to_rgba
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
    pictures: tuple[Picture, ...]


class Panel(NamedTuple):
    """Reconstructions and guesses of one variant's messages."""

    title: str
    rows: tuple[PictureRow, ...]


def make_showcase(featured: Mapping[str, Summary]) -> list[Panel]:
    """Return a panel for each featured variant that kept pictures, those of its first run."""
    panels = (make_panel(summary) for summary in featured.values())
    return [panel for panel in panels if len(panel.rows) > 1]


def make_panel(summary: Summary) -> Panel:
    """Return originals, the worst attack's images, the optimal attacker's likeliest ones."""
    run = summary.runs[0] if summary.runs else None
    if run is None or not (run.images or run.guesses):
        return Panel(summary.label, ())
    guesses = {name: value[:SHOWN].numpy() for name, value in run.guesses.items()}
    rebuilt = {name: images[:SHOWN] for name, images in run.images.items()}
    originals = guesses.get("targets", rebuilt.get("targets"))
    assert originals is not None  # one of the two was kept, and has them
    rows = [make_row("sent", originals, "original")]
    attack = next((name for name in summary.worst_attacks if name in rebuilt), None)
    if attack and np.array_equal(rebuilt["targets"], originals[: len(rebuilt["targets"])]):
        rows.append(make_row(f"rebuilt ({attack})", rebuilt[attack], f"rebuilt by {attack}"))
    if guesses:
        rows += make_guess_rows(originals, guesses["guesses"], guesses["probabilities"])
    return Panel(summary.label, tuple(rows))


def make_row(name: str, images: Images, description: str) -> PictureRow:
    """Return a row of images without notes."""
    sources = encode_each(images)
    return PictureRow(name, tuple(Picture(source, description) for source in sources))


def make_guess_rows(
    originals: Images, guesses: np.ndarray, probabilities: np.ndarray
) -> list[PictureRow]:
    """Return the likeliest, the second, the third candidate of each message and how sure it is."""
    rows = []
    for rank in range(min(len(ORDINALS), guesses.shape[1])):
        pictures = []
        for number, source in enumerate(encode_each(guesses[:, rank])):
            is_right = bool(np.array_equal(guesses[number, rank], originals[number]))
            share = percent(float(probabilities[number, rank]))
            verdict = "right" if is_right else "wrong"
            description = f"{ORDINALS[rank]} guess, {verdict}, probability {share}"
            pictures.append(Picture(source, description, share, is_right))
        rows.append(PictureRow(f"{ORDINALS[rank]} guess", tuple(pictures)))
    return rows


def encode_each(images: Images) -> Iterable[str]:
    """Return each image as a PNG in a data URL."""
    for pixels in to_rgba(images):
        yield encode_data_url((255 * pixels).round().astype(np.uint8).transpose(1, 2, 0))
