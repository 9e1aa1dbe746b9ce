"""Damaged pictures and odd labels, drawn at random: an image, or an error that names the fault."""

import os
import resource
import warnings
from collections import Counter
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedcel
from fedcel.data import ImageFolder, Npz, read_source
from fedcel.errors import DataError
from tests.fedcel.seeded import seeded

PICTURES = int(os.environ.get("FEDCEL_PICTURES", "400"))
LABELS = int(os.environ.get("FEDCEL_LABELS", "200"))
FORMATS = (
    ("JPEG", "RGB"),
    ("JPEG", "CMYK"),
    ("PNG", "RGBA"),
    ("PNG", "P"),
    ("PNG", "I;16"),
    ("GIF", "P"),
    ("TIFF", "RGB"),
    ("TIFF", "I;16"),
    ("BMP", "RGB"),
    ("WEBP", "RGB"),
    ("PPM", "RGB"),
    ("AVIF", "RGB"),
    ("DDS", "RGBA"),
    ("JPEG2000", "RGB"),
    ("ICO", "RGBA"),
    ("TGA", "RGB"),
    ("PCX", "RGB"),
    ("SGI", "RGB"),
    ("QOI", "RGB"),
)
MAX_GROWTH = 500_000  # KiB: the labels that once took 16 GB are among those that are tried


def draw_exif(stream: np.random.Generator) -> Image.Exif:
    """Return an orientation, and tags of types that they should not have."""
    exif = Image.Exif()
    exif[0x0112] = int(stream.integers(0, 12))
    odd = [b"\x00\xff", "text", 3, (1, 2, 3), 2.5]
    for tag in stream.integers(0x0100, 0xA500, 3).tolist():
        exif[tag] = odd[stream.integers(len(odd))]
    return exif


def encode(kind: str, mode: str, stream: np.random.Generator) -> bytes:
    """Return a sound picture of some pixels, half of them with EXIF, some with several frames."""
    pixels = stream.integers(0, 256, (12, 10, 3), dtype=np.uint8)
    if mode == "I;16":
        picture = Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)
    else:
        picture = Image.fromarray(pixels).convert(mode)
    more: dict[str, object] = {}
    if kind in ("JPEG", "PNG", "TIFF", "WEBP") and stream.random() < 0.5:
        more["exif"] = draw_exif(stream)
    if kind in ("GIF", "PNG", "TIFF", "WEBP", "AVIF") and stream.random() < 0.3:
        more |= {"save_all": True, "append_images": [picture.rotate(90), picture.rotate(180)]}
    if kind == "TIFF":
        more["compression"] = [None, "tiff_lzw", "tiff_adobe_deflate"][stream.integers(3)]
    file = BytesIO()
    try:
        picture.save(file, kind, **more)
    except Exception:  # an odd tag that Pillow does not write
        file = BytesIO()
        picture.save(file, kind)
    return file.getvalue()


def damage(raw: bytes, stream: np.random.Generator) -> bytes:
    """Return the bytes with some of them changed, cut off, doubled or left out; a few stay."""
    data = bytearray(raw)
    way = stream.integers(6)
    if way in (0, 1):
        head = len(data) if way else min(len(data), 200)
        for place in stream.integers(0, head, stream.integers(1, 9)).tolist():
            data[place] = int(stream.integers(256))
    start, end = sorted(stream.integers(0, len(data) + 1, 2).tolist())
    if way == 2:
        del data[end:]
    if way == 3:
        del data[start : min(end, start + 40)]
    if way == 4:
        data[start:start] = data[start : min(end, start + 40)]
    return bytes(data)


@pytest.mark.filterwarnings("ignore")
def test_damaged_pictures_are_read_or_named(tmp_path: Path) -> None:
    """Through the source of folders: no error but DataError, and that names the file."""
    for label in "ab":
        (tmp_path / label).mkdir()
        Image.new("L", (9, 9), 40).save(tmp_path / label / "sound.png")
    data = ImageFolder(path=str(tmp_path), size=4)
    stream = np.random.default_rng(0)
    outcomes = Counter[str]()
    for number in range(PICTURES):
        kind, mode = FORMATS[number % len(FORMATS)]
        path = tmp_path / "b" / f"{number}.{kind.lower()}"
        path.write_bytes(damage(encode(kind, mode, stream), stream))
        try:
            read_source(data)
            fault = ""
        except DataError as error:
            fault = str(error)
        assert not fault or path.name in fault, f"{path.name} is not in {fault}"
        outcomes["refused" if fault else "read"] += 1
        path.unlink()
    assert min(outcomes["read"], outcomes["refused"]) > PICTURES // 5, outcomes


def draw_labels(stream: np.random.Generator, count: int) -> object:
    """Return labels of any type, size and kind, right and wrong."""
    top = [2, 5, 256, 40_000, 2_000_000_000, 10**12, 2**63 - 1][stream.integers(7)]
    low = [0, 0, 0, 0, 0, 1, -1, -(2**40)][stream.integers(8)]
    few = stream.integers(low, top, stream.integers(1, count + 1), dtype=np.int64)
    values = stream.choice(few, count)
    length = [count - 1, 0, count + 3, *[count] * 9][stream.integers(12)]
    values = np.resize(values, length)
    kinds = ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", ">i8", ">u2", "f4", "f8", "c8", "?")
    ways: list[Callable[[], object]] = [
        *[lambda: values.astype(kinds[stream.integers(len(kinds))])] * 12,
        *[lambda: values.tolist()] * 4,
        *[lambda: values[::-1]] * 4,
        lambda: torch.from_numpy(values).to(
            [torch.uint16, torch.uint32, torch.uint64, torch.int32, torch.half][stream.integers(5)]
        ),
        lambda: values.astype(str),
        lambda: values.astype(object),
        lambda: [f"person {value}" for value in values],
        lambda: [int(value) * 2**20 for value in values],
        lambda: values[:, None],
        lambda: [None] * length,
        lambda: [torch.tensor(value) for value in values.tolist()],
        lambda: [[1], [2, 3]],
        lambda: {"a": 1},
        lambda: "labels",
        lambda: values.astype("datetime64[s]"),
        lambda: torch.full((length,), float("nan")),
        lambda: np.full(length, 2**64 - 1, dtype=np.uint64),
    ]
    return ways[stream.integers(len(ways))]()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("unchecked_types")
def test_odd_labels_are_numbered_or_refused(tmp_path: Path) -> None:
    """In each door: bits, attributes and archives; the memory stays flat."""
    stream = np.random.default_rng(1)
    images = torch.rand(6, 1, 4, 4, generator=seeded(0))
    features = images.flatten(1)
    pixels = (images[:, 0] * 255).byte().numpy()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes = Counter[str]()

    def measure(labels: object) -> None:
        found = measure_bits(labels)
        assert found == measure_bits(np.unique(labels, return_inverse=True)[1])

    def measure_bits(labels: object) -> tuple[float | None, ...]:
        leak = fedcel.measure_leakage(features=features, labels=labels, noise=0.3, draws=2)
        return leak.bits_beyond_label, leak.cap_beyond_label, leak.identification_by_label

    def measure_attribute(labels: object) -> None:
        fedcel.measure_attribute_leakage(
            features=features, labels=[0, 1] * 3, attributes=labels, noise=0.3, draws=2
        )

    def read_archive(labels: object) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                array = labels.numpy() if isinstance(labels, torch.Tensor) else np.array(labels)
            except ValueError:
                return
        path = tmp_path / "a.npz"
        np.savez(path, x_train=pixels, y_train=array)
        read_source(Npz(path=str(path)), is_numbered_anew=True)

    def build_loss(labels: object) -> None:
        fedcel.PlainCEL(classes=5, noise=0.3)(features, labels)

    doors = (measure, measure_attribute, read_archive, build_loss)
    for number in range(LABELS):
        door = doors[number % len(doors)]
        labels = draw_labels(stream, 6)
        try:
            door(labels)
            fault = ""
        except ValueError as error:  # as DataError is
            fault = str(error)
        is_named = any(word in fault for word in ("label", "attributes", "y_train"))
        assert not fault or is_named, f"{door.__name__} of {labels!r}: {fault}"
        outcomes["refused" if fault else "taken"] += 1
    assert min(outcomes["taken"], outcomes["refused"]) > LABELS // 5, outcomes
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MAX_GROWTH
