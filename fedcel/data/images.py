"""Images with labels, and what every source of them has to keep to."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from math import isnan
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor
from torch.nn.functional import interpolate

from fedcel.errors import DataError, describe_unforeseen
from fedcel.short_repr import show_shapes
from fedcel.tensors import digest_pixels, to_floats

Labels = Int[Tensor, " _"]
MAX_ABSENT = 5  # labels that a message names
_IMAGES_AT_ONCE = 256
LUMINANCE = (0.299, 0.587, 0.114)  # red, green, blue


@show_shapes
class Images(NamedTuple):
    """Images and their labels.

    Attributes:
        x: Images (N, C, H, W), float32 in [0, 1], or unsigned bytes, 255 of which are 1.
        y: Labels (N,), int64, from 0.
    """

    x: Shaped[Tensor, "N C H W"]
    y: Int[Tensor, " N"]


@show_shapes
class SourceParts(NamedTuple):
    """Images of a source, unchecked.

    Attributes:
        train: The training images.
        test: The test images, or None where the source has no such part.
        holders: Number of each training image's holder, or None.
        notes: Lines of text that say what was done to the images.
        class_names: Name of each class, in the order of the labels; none where there are no names.
        is_labelled: Whether the labels are of classes; else each image has one of its own.
    """

    train: Images
    test: Images | None = None
    holders: Labels | None = None
    notes: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    is_labelled: bool = True


def check_images(images: Images, where: str) -> None:
    """Refuse what is no stack of images in [0, 1] with a label each.

    Args:
        images: Images and labels, unchecked.
        where: What they are, for the message.

    Raises:
        DataError: They are of another shape, type or range.
    """
    x, y = images
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
        raise DataError(
            f"{where}: images are {type(x).__name__}, labels {type(y).__name__}, must be tensors "
            "of PyTorch; convert them with torch.as_tensor"
        )
    if x.dim() != 4 or x.dtype not in (torch.float32, torch.uint8) or 0 in x.shape:
        raise DataError(
            f"{where}: images are {tuple(x.shape)} of {x.dtype}, must be float32 or uint8 of shape "
            "(N, C, H, W) with N > 0; reshape and convert them"
        )
    if y.shape != x.shape[:1] or y.dtype != torch.int64:
        raise DataError(
            f"{where}: {len(x)} images but labels {tuple(y.shape)} of {y.dtype}, must be "
            f"int64 of shape ({len(x)},); give each image one label"
        )
    low, high = x.min().item(), x.max().item()  # NaN comes through both
    if isnan(low):
        first = int(x.flatten(1).isnan().any(1).nonzero()[0])
        raise DataError(f"{where}: pixels of image {first} are NaN, must be in [0, 1]; mend them")
    if x.dtype != torch.uint8 and not 0 <= low <= high <= 1:
        raise DataError(
            f"{where}: pixels are in [{low}, {high}], must be in [0, 1]; scale them, bytes by 1/255"
        )


def match_pixels(
    images: Iterable[Shaped[Tensor, "C H W"]], others: Iterable[Shaped[Tensor, "C H W"]]
) -> Bool[Tensor, " n"]:
    """Find out which images equal one of others in every pixel.

    Args:
        images: The images that are looked for.
        others: Those among which they are looked for.

    Returns:
        Whether each image is among the others, (n,).
    """
    pixels = set(map(digest_pixels, others))
    return torch.tensor([digest_pixels(image) in pixels for image in images], dtype=torch.bool)


@contextmanager
def name_unreadable(where: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of the system, and of these kinds, into a DataError that names `where`."""
    expected: tuple[type[Exception], ...] = (OSError, MemoryError, *kinds)
    try:
        yield
    except expected as error:
        raise DataError(
            f"{where} cannot be read ({describe_unforeseen(error)}); correct the path, allow to "
            "read it, or take fewer or smaller images"
        ) from error


def count_classes(y: Labels, where: str) -> int:
    """Return C of labels that are 0..C-1, each present; DataError names `where` and the gap."""
    if y.min() < 0:
        raise DataError(
            f"{where}: the smallest label is {int(y.min())}, must be 0; number classes from 0"
        )
    present = torch.unique(y)
    if len(present) < 2:
        raise DataError(f"{where}: all {len(y)} labels are {y[0]}; give at least two classes")
    if present[-1] >= len(present):
        occurring = set(present.tolist())
        gaps = (label for label in range(int(present[-1])) if label not in occurring)
        absent = list(islice(gaps, MAX_ABSENT))
        raise DataError(
            f"{where}: labels go up to {present[-1]} but {absent} do not occur; number the classes "
            "0..C-1 without a gap, as numpy.unique(labels, return_inverse=True)[1] does"
        )
    return len(present)


def number_names(names: list[str]) -> Labels:
    """Return 0, 1, ... in the order of the names."""
    return torch.from_numpy(np.unique(names, return_inverse=True)[1].astype(np.int64))


def fit_images(
    x: Shaped[Tensor, "N C H W"], *, size: int, grey: bool, where: str
) -> Shaped[Tensor, "N c h w"]:
    """Resize images to a square, and turn colours into their luminance; bytes are rounded to bytes.

    Bilinear with antialiasing, other shapes are stretched. Grey is .299 R + .587 G + .114 B
    (ITU-R BT.601-7, section 2.5.1). DataError, which names `where`, for images that are neither
    grey nor red, green, blue.
    """
    channels, side = x.shape[1], (size, size) if size else x.shape[2:]
    is_coloured = grey and channels != 1
    if is_coloured and channels != 3:
        raise DataError(
            f"{where}: images have {channels} channels and data.grey is true, must be 3, or 1, "
            "which is grey already; set data.grey to false"
        )
    if not is_coloured and x.shape[2:] == side:
        return x
    fitted = torch.empty(len(x), 1 if is_coloured else channels, *side, dtype=x.dtype)
    pieces = zip(*(torch.split(part, _IMAGES_AT_ONCE) for part in (x, fitted)), strict=True)
    for original, piece in pieces:  # all at once takes several times the memory
        values = to_floats(original)
        if is_coloured:
            values = (values * torch.tensor(LUMINANCE).view(3, 1, 1)).sum(1, keepdim=True)
        if values.shape[2:] != side:
            values = interpolate(values, side, mode="bilinear", antialias=True, align_corners=False)
        values = values.clamp(0, 1)  # rounding leads beyond by some 1e-7
        piece.copy_((values * 255).round_() if piece.dtype == torch.uint8 else values)
    return fitted
