"""Reconstructions and guesses of attackers below their originals: strips of images as PNG."""

import base64
from collections.abc import Sequence
from io import BytesIO
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8
from matplotlib.image import imsave

from sims.report.book import Images
from sims.report.summary import Summary
from sims.report.verdict import percent

REFERENCE_NAMES = {"targets": "originals", "class-mean": "label only (mean of the class)"}
TILE = 32  # pixels: smaller images are enlarged, each pixel to a square
GAP = 4
GUESSED = 5
"""Messages whose guesses stand at the top: as many as a narrow screen has room for."""
ORDINALS = ("first", "second", "third")


class Strip(NamedTuple):
    """One row of images; `group` is the variant's label, empty for the anchors."""

    group: str
    name: str
    images: Images
    notes: Sequence[str] = ()
    """Text below each image, or none."""

    @property
    def source(self) -> str:
        """The images side by side, as a PNG in a data URL."""
        png = base64.b64encode(encode_png(tile_images(self.images))).decode()
        return f"data:image/png;base64,{png}"


def list_guesses(summary: Summary) -> list[Strip]:
    """Return messages of the first run: sent, rebuilt by the worst attack, guessed by the optimal.

    Nothing where only the originals were kept.
    """
    run = summary.runs[0]
    guesses = {name: value[:GUESSED].numpy() for name, value in run.guesses.items()}
    rebuilt = {name: images[:GUESSED] for name, images in run.images.items()}
    if not (guesses or rebuilt):
        return []
    originals = (guesses or rebuilt)["targets"]
    strips = [Strip("", "sent", originals)]
    attack = next((name for name in summary.worst_attacks if name in rebuilt), None)
    if attack and np.array_equal(rebuilt["targets"], originals[: len(rebuilt["targets"])]):
        strips.append(Strip("", f"rebuilt ({attack})", rebuilt[attack]))
    ranked = guesses["guesses"].swapaxes(0, 1) if guesses else ()
    for rank, (ordinal, images) in enumerate(zip(ORDINALS, ranked, strict=False)):
        shares = map(percent, guesses["probabilities"][:, rank].tolist())
        is_right = (images == originals).all((1, 2, 3))
        notes = [
            f"{share} ✓" if right else share for share, right in zip(shares, is_right, strict=True)
        ]
        strips.append(Strip("", f"{ordinal} guess", images, notes))
    return strips if len(strips) > 1 else []


def make_strips(summaries: Sequence[Summary]) -> list[Strip]:
    """Return originals, class means, then each variant x attack of its first training seed.

    A variant attacked on other images than the first one brings its own originals.
    """
    strips: list[Strip] = []
    targets: Images | None = None
    for summary in summaries:
        images = summary.runs[0].images
        if not images:
            continue
        if targets is None or not np.array_equal(targets, images["targets"]):
            group = "" if targets is None else summary.label
            strips += [
                Strip(group, title, images[name])
                for name, title in REFERENCE_NAMES.items()
                if name in images
            ]
        targets = images["targets"]
        strips += [
            Strip(summary.label, name, rebuilt)
            for name, rebuilt in images.items()
            if name not in REFERENCE_NAMES
        ]
    return strips


def tile_images(images: Images) -> UInt8[np.ndarray, "height width 4"]:
    """Return the images side by side as RGBA, [0, 1] becomes 0..255; a single one as it is.

    One channel is grey, three are red, green, blue; of any other number the mean is shown. Small
    images are enlarged, each pixel to a square. Gaps around several are transparent.
    Not by `make_grid` of torchvision: importing it takes two seconds, for its models.
    """
    colour = images if images.shape[1] in (1, 3) else images.mean(1, keepdims=True)
    rgb = np.broadcast_to(colour, (len(images), 3, *images.shape[2:]))
    opaque = np.concatenate([rgb, np.ones_like(rgb[:, :1])], 1)
    scale = max(1, -(-TILE // images.shape[3]))
    enlarged = opaque.repeat(scale, 2).repeat(scale, 3).clip(0, 1)  # read_images allows 1e-4
    gap = GAP if len(images) > 1 else 0
    tiles = np.pad(enlarged, ((0, 0), (0, 0), (gap, gap), (gap, 0)))
    row = np.pad(np.concatenate([*tiles], 2), ((0, 0), (0, 0), (0, gap)))
    return np.asarray((255 * row).round().transpose(1, 2, 0), np.uint8)


def encode_png(pixels: UInt8[np.ndarray, "height width 4"]) -> bytes:
    """Return the pixels as a PNG file."""
    file = BytesIO()
    imsave(file, np.ascontiguousarray(pixels), format="png")
    return file.getvalue()


def make_grid(strips: Sequence[Strip]) -> UInt8[np.ndarray, "height width 4"]:
    """Return all strips below one another, for figures/reconstructions.png."""
    tiled = [tile_images(strip.images) for strip in strips]
    width = max(pixels.shape[1] for pixels in tiled)
    return np.concatenate(
        [np.pad(pixels, ((0, 0), (0, width - pixels.shape[1]), (0, 0))) for pixels in tiled]
    )
