"""One numpy file: x_train, y_train and, if there is a test part, x_test, y_test."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedcel.data.images import Images, SourceParts
from fedcel.data.source import ColourSource
from fedcel.errors import DataError, describe_unforeseen, escape_controls
from fedcel.tensors import to_labels

CHANNELS = (1, 3)
TRAINING, TEST = ("x_train", "y_train"), ("x_test", "y_test")


class Npz(ColourSource):
    """One file of arrays.

    Images are unsigned bytes or floats in [0, 1], one (N, H, W), or with 1 or 3 channels (N, H, W,
    C) or (N, C, H, W); labels are integers (N,) or (N, 1). Pickled objects are never loaded.
    """

    source: Literal["npz"] = "npz"

    def read(self) -> SourceParts:
        """Read training images and, if there are, test images."""
        path = Path(self.path)
        if not path.is_file():
            raise DataError(
                f"data.path is {self.path!r}, which is no file; give the .npz file that holds "
                "x_train, y_train and, if there is a test part, x_test, y_test"
            )
        arrays, left_out = _load_arrays(path, TRAINING + TEST)
        has_test = not arrays.keys().isdisjoint(TEST)
        training = _read_part(arrays, "train", path, left_out)
        notes = (f"arrays that are left out: {', '.join(left_out)}",) if left_out else ()
        test = _read_part(arrays, "test", path, left_out) if has_test else None
        return SourceParts(training, test, notes=notes)

    def read_training(self, classes: Sequence[str]) -> SourceParts:
        """Read the training images; no other array is looked at."""
        path = Path(self.path)
        arrays, others = _load_arrays(path, TRAINING)
        return SourceParts(_read_part(arrays, "train", path, others))


def _load_arrays(
    path: Path, names: tuple[str, ...]
) -> tuple[dict[str, NDArray[np.generic]], list[str]]:
    """Return an archive's arrays of these names, and the other names; DataError on damage."""
    try:
        with zipfile.ZipFile(path):  # numpy takes single arrays for archives as well
            pass
        with np.load(path, allow_pickle=False) as archive:
            others = [escape_controls(name) for name in archive.files if name not in names]
            return {name: archive[name] for name in archive.files if name in names}, others
    except Exception as error:  # damage is met by zipfile, zlib, struct or numpy, each in its way
        raise DataError(
            f"{path} cannot be read ({describe_unforeseen(error)}); write it with numpy.savez from "
            "arrays of numbers"
        ) from error


def _read_part(
    arrays: dict[str, NDArray[np.generic]], name: str, path: Path, others: Sequence[str]
) -> Images:
    """Return the images of one part; DataError names the array."""
    for key in (f"x_{name}", f"y_{name}"):
        if key not in arrays:
            names = ", ".join(sorted([*arrays, *others])) or "none"
            raise DataError(f"{path}: no array {key}, there are: {names}; add it to the file")
    x, y = arrays[f"x_{name}"], arrays[f"y_{name}"]
    if x.ndim == 0:
        raise DataError(f"{path}: x_{name} is a single value, must be images (N, H, W); stack them")
    if y.dtype.kind not in "iu" or y.shape not in ((len(x),), (len(x), 1)):
        raise DataError(
            f"{path}: y_{name} is {y.dtype} {y.shape}, must be integers of shape ({len(x)},), one "
            f"label for each of x_{name}; convert it"
        )
    try:
        labels = to_labels(y.ravel(), len(x), f"{path}: y_{name}")
    except ValueError as error:
        raise DataError(str(error)) from error
    return Images(_arrange_pixels(x, f"{path}: x_{name}"), labels)


def _arrange_pixels(x: NDArray[np.generic], where: str) -> torch.Tensor:
    """Return bytes or float32, (N, C, H, W); DataError where the axes are in doubt."""
    if x.dtype != np.uint8 and x.dtype.kind != "f":
        raise DataError(f"{where} is {x.dtype}, must be uint8, or float in [0, 1]; convert it")
    if x.ndim == 3:
        x = x[:, None]
    is_first, is_last = (x.ndim == 4 and x.shape[axis] in CHANNELS for axis in (1, 3))
    if is_first == is_last:
        raise DataError(
            f"{where} has shape {x.shape}, must be (N, H, W), or (N, H, W, C) or (N, C, H, W) with "
            "C, and no other side, 1 or 3; reshape it"
        )
    x = _put_channels_first(x) if is_last else x
    return torch.from_numpy(np.ascontiguousarray(x, np.uint8 if x.dtype == np.uint8 else "f4"))


def _put_channels_first(x: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return (N, H, W, C) as (N, C, H, W) in the same memory, which holds the only copy."""
    count, height, width, channels = x.shape
    rows = np.ascontiguousarray(x).reshape(count, height * width * channels)
    for row in rows:
        row[:] = row.reshape(height, width, channels).transpose(2, 0, 1).ravel()
    return rows.reshape(count, channels, height, width)
