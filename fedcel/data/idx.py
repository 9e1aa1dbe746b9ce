"""Folders of MNIST-format files (`*-ubyte`, `*-ubyte.gz`).

torchvision's reader wants uncompressed files in a folder tree of its own and meets damage with
bare assertions, so the few lines of the format are read here.
Format: LeCun, Cortes and Burges, "The MNIST database of handwritten digits", file formats.
"""

import gzip
import zlib
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedcel.data.images import Images, SourceParts
from fedcel.data.source import FileSource
from fedcel.errors import DataError, describe_unforeseen

UNSIGNED_BYTES = 0x08
MAX_RATIO = 1032  # bytes that a byte of gzip can stand for


class Idx(FileSource):
    """Folder of MNIST-format files: grey images (N, 1, H, W).

    It holds train-images-idx3-ubyte, train-labels-idx1-ubyte, and the same for t10k, each plain or
    with `.gz`.
    """

    source: Literal["idx"] = "idx"

    def read(self) -> SourceParts:
        """Read training and test images."""
        return self.read_training(())._replace(test=_read_part(Path(self.path), "t10k"))

    def read_training(self, classes: Sequence[str]) -> SourceParts:
        """Read the training images; no other file is looked at."""
        folder = Path(self.path)
        if self.path == "none" or not folder.is_dir():
            raise DataError(
                f"data.path is {self.path!r}, which is no folder; "
                "give the folder that holds train-images-idx3-ubyte(.gz) and the three others"
            )
        return SourceParts(_read_part(folder, "train"))


def _read_part(folder: Path, name: str) -> Images:
    images, labels = (_find_file(folder, f"{name}-{end}") for end in ("images-idx3", "labels-idx1"))
    pixels = read_array(images, 3)
    y = read_array(labels, 1)
    if len(pixels) != len(y):
        raise DataError(
            f"{images} has {len(pixels)} images, {labels} has {len(y)} labels, must be as many; "
            "check that the files belong together"
        )
    return Images(torch.tensor(pixels[:, None]), torch.from_numpy(y.astype(np.int64)))


def _find_file(folder: Path, stem: str) -> Path:
    """Return the one file of a name such as train-images-idx3; DataError when there is none.

    Mirrors spell it with a dot as well: train-images.idx3-ubyte.
    """
    names = [f"{name}-ubyte" for name in (stem, stem.replace("-idx", ".idx"))]
    for path in (folder / f"{name}{end}" for name in names for end in ("", ".gz")):
        if path.is_file():
            return path
    files = sorted(path.name for path in folder.iterdir())
    kind = stem.rpartition("-")[0]
    similar = [name for name in files if kind.removeprefix("t10k-") in name and "idx" in name]
    remedy = "copy it there, or set data.path to its folder"
    if similar and not any(name.startswith(("train-", "t10k-")) for name in similar):
        remedy = f"rename those that belong to it, {', '.join(similar[:4])}, or {remedy}"
    raise DataError(f"{folder}: no file {names[0]} or {names[0]}.gz among {files[:8]}; {remedy}")


def read_array(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Return the bytes of one idx file in its shape; DataError when it is damaged."""
    start = 4 + 4 * dimensions
    is_packed = path.suffix == ".gz"
    try:
        with (gzip.open if is_packed else open)(path, "rb") as file:
            raw = file.read(start)
            shape = [int(size) for size in np.frombuffer(raw[4 : len(raw) // 4 * 4], ">u4")]
            expected = start + prod(shape)
            most = path.stat().st_size * (MAX_RATIO if is_packed else 1)
            raw += file.read(min(expected - len(raw), most) + 1)  # a bomb is not read to its end
    except (OSError, EOFError, zlib.error, MemoryError) as error:  # BadGzipFile is an OSError
        reason = describe_unforeseen(error)
        raise DataError(f"{path} cannot be read ({reason}); copy the file anew") from error
    magic = bytes([0, 0, UNSIGNED_BYTES, dimensions])
    if raw[:4] != magic:
        raise DataError(
            f"{path} begins with {raw[:4].hex() or 'nothing'}, must begin with {magic.hex()} "
            f"(idx, unsigned bytes, {dimensions} dimensions); it is another kind of file"
        )
    if len(raw) < start:
        raise DataError(f"{path} ends inside its header, after {len(raw)} bytes; copy it anew")
    if len(raw) != expected:
        count = f"{len(raw)} bytes" + (" or more" if len(raw) > expected else "")
        raise DataError(
            f"{path} has {count}, must have {expected} for the shape {shape} in its "
            "header; it is cut off or damaged, copy it anew"
        )
    if 0 in shape:
        raise DataError(f"{path} has the shape {shape}, nothing is in it; copy it anew")
    return np.frombuffer(raw, dtype=np.uint8, offset=start).reshape(shape)
