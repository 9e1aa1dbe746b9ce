"""Strips of pictures: reconstructions and guesses below their originals, and leak maps."""

import base64
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
import PIL.Image
from jaxtyping import Float, UInt8
from torch import Tensor

from fedcel.leakage import LeakMaps
from sims.report.summary import FinishedRun, Images, Summary
from sims.report.verdict import percent

REFERENCE_NAMES = {"targets": "originals", "class-mean": "label only (mean of the class)"}
SENT = "sent"
"""Name of the strip of the images themselves."""
TILE = 32  # pixels: smaller images are enlarged, each pixel to a square
GAP = 4
GUESSED = 5
"""Messages whose guesses stand at the top: as many as a narrow screen has room for."""
ORDINALS = ("first", "second", "third")
LOSSLESS = 64  # pixels a side, up to which a picture is kept to the last bit
QUALITY = 60  # of WebP, in which larger pictures are
LARGEST = 256  # pixels a side of a picture on a page
PAGE_PICTURES = 400
"""Pictures of a page, maps apart, 5 MB: where strips are many, fewer images of each are shown."""
MAPS_NOTE = (
    "“Exposed” is the diagonal of the message's Fisher information about the pixels, on a "
    "logarithmic scale; “unknown” is the standard deviation of each pixel given the message, and "
    "“unknown without a message” that without it. Bright is much; each scale is the "
    "same for all rows: exposed from {low:.2g} to {high} per squared pixel, unknown from 0 "
    "to {deviation:.2g}."
)
DECADES = 3
"""Powers of ten that the scale of the information spans."""


class Strip(NamedTuple):
    """One row of images; `group` is the variant's label, empty for the anchors."""

    group: str
    name: str
    images: Images
    notes: Sequence[str] = ()
    """Text below each image, or none."""

    @property
    def pictures(self) -> list[tuple[str, str]]:
        """Each image as a data URL, and the text below it."""
        notes = [*self.notes, *[""] * (len(self.images) - len(self.notes))]
        return list(zip(map(encode_picture, self.images), notes, strict=True))

    @property
    def is_small(self) -> bool:
        """Whether pixels are shown as squares."""
        return bool(max(self.images.shape[2:]) <= LOSSLESS)


def make_image_strips(images: Mapping[str, Tensor], count: int | None = None) -> list[Strip]:
    """Return a strip of the images, or of the first ones, under each name."""
    return [Strip("", name, rows[:count].double().numpy()) for name, rows in images.items()]


def limit_strips(strips: Sequence[Strip]) -> list[Strip]:
    """Return strips of as many images as a page has room for, two at least."""
    count = max(2, PAGE_PICTURES // max(1, len(strips)))
    return [
        strip._replace(images=strip.images[:count], notes=strip.notes[:count]) for strip in strips
    ]


def encode_picture(image: Float[np.ndarray, "C H W"]) -> str:
    """Return an image as a data URL: lossless where it is small, else as WebP."""
    picture = PIL.Image.fromarray(tile_images(image[None], least_side=0)[..., :3])
    side, file = max(picture.size), BytesIO()
    form = "PNG" if side <= LOSSLESS else "WEBP"
    picture.reduce(-(-side // LARGEST)).save(file, form, optimize=True, quality=QUALITY)
    return f"data:image/{form.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def name_classes(run: FinishedRun, labels: Sequence[int]) -> list[str]:
    """Return the classes' names, each empty where they have none."""
    names = run.result.class_names
    return [names[label] if names else "" for label in labels]


def name_targets(run: FinishedRun, images: Images) -> list[str]:
    """Return the names of the classes of the run's first test images, [] of other images."""
    first = run.guesses["targets"][: len(images)].numpy()
    if not np.array_equal(first, images[: len(first)]):
        return []
    return name_classes(run, run.guesses["labels"][: len(images)].tolist())


def list_guesses(summary: Summary) -> list[Strip]:
    """Return messages of the first run: sent, rebuilt by the worst attack, guessed."""
    run = summary.runs[0]
    guesses = {name: value[:GUESSED].numpy() for name, value in run.guesses.items()}
    rebuilt = {name: images[:GUESSED] for name, images in run.images.items()}
    originals = guesses["targets"]
    strips = [Strip("", SENT, originals, name_targets(run, originals))]
    attack = next((name for name in summary.worst_attacks if name in rebuilt), None)
    if attack and np.array_equal(rebuilt["targets"], originals[: len(rebuilt["targets"])]):
        strips.append(Strip("", f"rebuilt ({attack})", rebuilt[attack]))
    ranked = guesses["guesses"].swapaxes(0, 1)
    for rank, (ordinal, images) in enumerate(zip(ORDINALS, ranked, strict=False)):
        shares = map(percent, guesses["probabilities"][:, rank].tolist())
        marks = np.where((images == originals).all((1, 2, 3)), " ✓", "")
        names = name_classes(run, guesses["guess-labels"][:, rank].tolist())
        rows = zip(names, shares, marks, strict=True)
        notes = [f"{name} {share}{mark}".strip() for name, share, mark in rows]
        strips.append(Strip("", f"{ordinal} guess", images, notes))
    return strips


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
            names = name_targets(summary.runs[0], images["targets"])
            strips += [
                Strip(group, title, images[name], names if name == "targets" else ())
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


def tile_images(images: Images, least_side: int = TILE) -> UInt8[np.ndarray, "height width 4"]:
    """Return the images side by side as RGBA, [0, 1] becomes 0..255; a single one as it is.

    One channel is grey, three are red, green, blue; of any other number the mean is shown. Small
    images are enlarged, each pixel to a square. Gaps around several are transparent.
    Not by `make_grid` of torchvision: importing it takes two seconds, for its models.
    """
    colour = images if images.shape[1] in (1, 3) else images.mean(1, keepdims=True)
    rgb = np.broadcast_to(colour, (len(images), 3, *images.shape[2:]))
    opaque = np.concatenate([rgb, np.ones_like(rgb[:, :1])], 1)
    scale = max(1, -(-least_side // images.shape[3]))
    enlarged = opaque.repeat(scale, 2).repeat(scale, 3).clip(0, 1)  # read_images allows 1e-4
    gap = GAP if len(images) > 1 else 0
    tiles = np.pad(enlarged, ((0, 0), (0, 0), (gap, gap), (gap, 0)))
    row = np.pad(np.concatenate([*tiles], 2), ((0, 0), (0, 0), (0, gap)))
    return np.asarray((255 * row).round().transpose(1, 2, 0), np.uint8)


def encode_png(pixels: UInt8[np.ndarray, "height width 4"]) -> bytes:
    """Return the pixels as a PNG file."""
    file = BytesIO()
    PIL.Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def make_grid(strips: Sequence[Strip]) -> UInt8[np.ndarray, "height width 4"]:
    """Return all strips below one another, for figures/reconstructions.png."""
    tiled = [tile_images(strip.images) for strip in strips]
    width = max(pixels.shape[1] for pixels in tiled)
    return np.concatenate(
        [np.pad(pixels, ((0, 0), (0, width - pixels.shape[1]), (0, 0))) for pixels in tiled]
    )


def draw_leak_strips(encoders: Mapping[str, LeakMaps]) -> tuple[list[Strip], str]:
    """Return the maps of encoders by their names, in one colour scale each, and their note."""
    if not encoders:
        return [], ""
    maps = list(encoders.values())
    exposed = [part.information.double().sum(1).numpy() for part in maps]
    deviations = [*(part.deviation for part in maps), maps[0].prior_deviation[None]]
    unknown = [part.double().square().mean(1).sqrt().numpy() for part in deviations]
    high, deepest = (max(part.max() for part in parts) or 1.0 for parts in (exposed, unknown))
    strips = []
    for name, bright, dark in zip(encoders, exposed, unknown, strict=False):
        share = 1 + np.log10(np.maximum(bright / high, 10.0**-DECADES)) / DECADES
        strips.append(Strip(name, "exposed", paint(share)))
        strips.append(Strip(name, "unknown", paint(dark / deepest)))
    without = np.broadcast_to(unknown[-1], unknown[0].shape)
    strips.append(Strip("", "unknown without a message", paint(without / deepest)))
    shown = f"{high:,.0f}" if high >= 10 else f"{high:.2g}"
    return strips, MAPS_NOTE.format(low=high / 10**DECADES, high=shown, deviation=deepest)


def list_leak_strips(summaries: Sequence[Summary]) -> tuple[list[Strip], str]:
    """Return the maps of each variant's first run, below the images that they are of."""
    keys = ("leak-information", "leak-deviation", "prior-deviation", "targets")
    encoders, sent = dict[str, LeakMaps](), dict[str, Tensor]()
    for label, guesses in ((summary.label, summary.runs[0].guesses) for summary in summaries):
        if keys[0] in guesses:
            information, deviation, prior, targets = (guesses[key] for key in keys)
            encoders[label] = LeakMaps(information[:GUESSED], deviation[:GUESSED], prior, True)
            sent[SENT] = targets[:GUESSED]
    strips, note = draw_leak_strips(encoders)
    return [*make_image_strips(sent), *strips], note


def paint(shares: Float[np.ndarray, "T H W"]) -> Float[np.ndarray, "T 3 H W"]:
    """Return numbers in [0, 1] as colours, dark to bright."""
    colours = mpl.colormaps["inferno"](np.clip(shares, 0, 1))[..., :3]
    return np.ascontiguousarray(colours.transpose(0, 3, 1, 2))
