"""Reconstructions beside their originals: strips of images as PNG."""

from collections.abc import Sequence
from io import BytesIO
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from matplotlib.image import imsave

from sims.report.read import Images
from sims.report.summary import Summary

ANCHORS = {"targets": "originals", "class-mean": "label only (mean of the class)"}
TILE = 32  # pixels: smaller images are enlarged, each pixel to a square
GAP = 4


class Strip(NamedTuple):
    """One row of the grid; `group` is the variant's label, empty for the anchors."""

    group: str
    name: str
    images: Images


def make_strips(summaries: Sequence[Summary]) -> list[Strip]:
    """Return originals, class means, then each variant x attack of its first training seed.

    A variant attacked on other images than the first one brings its own originals.
    """
    found: list[Strip] = []
    shown: Images | None = None
    for summary in summaries:
        images = summary.runs[0].images if summary.runs else {}
        if not images:
            continue
        new = shown is None or not np.array_equal(shown, images["targets"])
        group = "" if shown is None else summary.label
        found += [Strip(group, t, images[k]) for k, t in ANCHORS.items() if new and k in images]
        shown = images["targets"]
        found += [Strip(summary.label, k, v) for k, v in images.items() if k not in ANCHORS]
    return found


def tile_images(images: Images) -> UInt8[np.ndarray, "height width 4"]:
    """Return the images side by side as RGBA, gaps around transparent; [0, 1] becomes 0..255.

    One channel is grey, three are red, green, blue; of any other number the mean is shown.
    """
    from torchvision.utils import make_grid  # two seconds, for its models

    colour = images if images.shape[1] in (1, 3) else images.mean(1, keepdims=True)
    rgb = np.broadcast_to(colour, (len(images), 3, *images.shape[2:]))
    opaque = np.concatenate([rgb, np.ones_like(rgb[:, :1])], 1)
    scale = max(1, -(-TILE // images.shape[3]))
    large = torch.from_numpy(opaque.repeat(scale, 2).repeat(scale, 3))
    row = make_grid(large, nrow=len(large), padding=GAP).clamp(0, 1)  # read() allows 1e-4
    return np.asarray((255 * row).round().permute(1, 2, 0), np.uint8)


def encode_png(pixels: UInt8[np.ndarray, "height width 4"]) -> bytes:
    """Return the pixels as a PNG file."""
    out = BytesIO()
    imsave(out, np.ascontiguousarray(pixels), format="png")
    return out.getvalue()


def make_grid(rows: Sequence[Strip]) -> UInt8[np.ndarray, "height width 4"]:
    """Return all strips below one another, for figures/reconstructions.png."""
    drawn = [tile_images(row.images) for row in rows]
    width = max(row.shape[1] for row in drawn)
    padded = [np.pad(row, ((0, 0), (0, width - row.shape[1]), (0, 0))) for row in drawn]
    return np.concatenate(padded)
