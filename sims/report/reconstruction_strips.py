"""Strips of pictures: reconstructions and guesses below their originals, and leak maps."""

import base64
from collections.abc import Sequence
from io import BytesIO
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
import PIL.Image
from jaxtyping import Float, UInt8

from sims.report.book import FinishedRun, Images
from sims.report.summary import Summary
from sims.report.verdict import percent

REFERENCE_NAMES = {"targets": "originals", "class-mean": "label only (mean of the class)"}
TILE = 32  # pixels: smaller images are enlarged, each pixel to a square
GAP = 4
GUESSED = 5
"""Messages whose guesses stand at the top: as many as a narrow screen has room for."""
ORDINALS = ("first", "second", "third")
LOSSLESS = 64  # pixels a side, up to which a picture is kept to the last bit
QUALITIES = (85, 60, 30)
"""Of WebP: the first by which a larger picture is small enough."""
PAGE_BYTES = 8_000_000
"""All pictures of a page together, at most."""
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


class Strip(NamedTuple):
    """One row of images; `group` is the variant's label, empty for the anchors."""

    group: str
    name: str
    images: Images
    notes: Sequence[str] = ()
    """Text below each image, or none."""
    limit: int = PAGE_BYTES
    """Bytes of each picture on the page, at most."""

    @property
    def pictures(self) -> list[tuple[str, str]]:
        """Each image as a data URL, and the text below it."""
        notes = [*self.notes, *[""] * (len(self.images) - len(self.notes))]
        sources = (encode_picture(image, self.limit) for image in self.images)
        return list(zip(sources, notes, strict=True))

    @property
    def is_small(self) -> bool:
        """Whether pixels are shown as squares."""
        return bool(max(self.images.shape[2:]) <= LOSSLESS)


def limit_strips(*groups: Sequence[Strip]) -> list[list[Strip]]:
    """Return the strips of a page with as many bytes for each picture as keep it small."""
    count = sum(len(strip.images) for strips in groups for strip in strips)
    limit = PAGE_BYTES // max(1, count)
    return [[strip._replace(limit=limit) for strip in strips] for strips in groups]


def encode_picture(image: Float[np.ndarray, "C H W"], limit: int) -> str:
    """Return an image as a data URL of at most `limit` bytes, or of one pixel.

    Lossless where it is small; else, or where that is too long, WebP of lower and lower quality,
    and at half the size, a quarter and so on.
    """
    pixels = tile_images(image[None], least_side=0)[..., :3]
    picture = PIL.Image.fromarray(pixels)
    ways = [("WEBP", quality) for quality in QUALITIES]
    if max(picture.size) <= LOSSLESS:
        ways = [("PNG", 100), *ways]  # it has no quality
    while True:
        for form, quality in ways:
            file = BytesIO()
            picture.save(file, form, optimize=True, quality=quality)
            encoded = base64.b64encode(file.getvalue()).decode()
            source = f"data:image/{form.lower()};base64,{encoded}"
            if len(source) <= limit or max(picture.size) == 1:
                return source
        picture = picture.reduce(2)


def name_classes(run: FinishedRun, labels: Sequence[int]) -> list[str]:
    """Return the classes' names, [] where they have none."""
    names = run.result.class_names
    return [names[label] for label in labels] if names else []


def name_targets(run: FinishedRun, images: Images) -> list[str]:
    """Return the names of the classes of the run's first test images, [] of other images."""
    if "labels" not in run.guesses:  # of an older run
        return []
    first = run.guesses["targets"][: len(images)].numpy()
    if not np.array_equal(first, images[: len(first)]):
        return []
    return name_classes(run, run.guesses["labels"][: len(images)].tolist())


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
    strips = [Strip("", "sent", originals, name_targets(run, originals))]
    attack = next((name for name in summary.worst_attacks if name in rebuilt), None)
    if attack and np.array_equal(rebuilt["targets"], originals[: len(rebuilt["targets"])]):
        strips.append(Strip("", f"rebuilt ({attack})", rebuilt[attack]))
    ranked = guesses["guesses"].swapaxes(0, 1) if guesses else ()
    for rank, (ordinal, images) in enumerate(zip(ORDINALS, ranked, strict=False)):
        shares = map(percent, guesses["probabilities"][:, rank].tolist())
        marks = np.where((images == originals).all((1, 2, 3)), " ✓", "")
        labels = guesses["guess-labels"][:, rank].tolist() if "guess-labels" in guesses else ()
        names = name_classes(run, labels) or [""] * len(marks)
        rows = zip(names, shares, marks, strict=True)
        notes = [f"{name} {share}{mark}".strip() for name, share, mark in rows]
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
