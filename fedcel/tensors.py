"""NumPy arrays where tensors are taken, checked in the same words."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int, Shaped
from numpy.typing import NDArray
from torch import Tensor

ArrayLike = Tensor | NDArray[np.generic] | Sequence[object]
"""What can be made a tensor: a tensor itself, an array, or a list of numbers."""


def to_tensor(values: object, name: str) -> Shaped[Tensor, "..."]:
    """Make a tensor of what a user gave, without a gradient; a tensor keeps its device.

    Args:
        values: A tensor, an array or a list of numbers.
        name: What it is called in an error.

    Returns:
        The tensor; of an array it may share the memory.

    Raises:
        ValueError: It holds no numbers.
    """
    if isinstance(values, Tensor):
        return (values.clone() if values.is_inference() else values).detach()
    try:
        array = np.asarray(values, order="C")
        if array.dtype.kind in "US":
            raise TypeError(describe_words(array))
        if not array.flags.writeable:  # PyTorch warns of memory that it might write
            array = array.copy()
        return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} are {type(values).__name__}, must be a tensor or an array of numbers ({error})"
        ) from error


def describe_words(words: NDArray[np.generic]) -> str:
    """Describe what makes numbers of text: of quoted numbers, and of names."""
    try:
        words.astype(float)
    except ValueError:
        if words.ndim:
            return "of words numpy.unique(..., return_inverse=True)[1] makes numbers"
    return f"the text {words.tolist()!r:.40}: leave the quotes out, or convert it with float"


def to_labels(values: object, count: int, name: str = "labels") -> Int[Tensor, " N"]:
    """Make labels of what a user gave, as many as there are images.

    Args:
        values: Whole numbers from 0, one an image: a tensor, an array or a list.
        count: Number of images.
        name: What they are called in an error.

    Returns:
        The labels (count,), int64, on their device.

    Raises:
        ValueError: Their number or shape is another, or they are no whole numbers from 0.
    """
    labels = to_tensor(values, name)
    if tuple(labels.shape) != (count,):
        raise ValueError(
            f"{name} are of shape {tuple(labels.shape)}, must be ({count},): one for each image"
        )
    if labels.dtype.is_floating_point or labels.dtype.is_complex or labels.dtype == torch.bool:
        raise ValueError(
            f"{name} are of type {labels.dtype}, must be whole numbers from 0; convert them, "
            "for one with labels.long()"
        )
    if count and int(labels.min()) < 0:
        raise ValueError(f"{name} hold {int(labels.min())}, must be whole numbers from 0")
    return labels.long()


def check_features(features: Shaped[Tensor, "..."], name: str = "features") -> None:
    """Refuse features that are no table of finite numbers.

    Args:
        features: What is to be one vector an image.
        name: What they are called in an error.

    Raises:
        ValueError: They are of another shape, empty, or hold NaN or infinity.
    """
    if features.dim() != 2 or 0 in features.shape:
        raise ValueError(
            f"{name} are of shape {tuple(features.shape)}, must be (N, D): one vector for each "
            "image, at least one"
        )
    is_finite = features.isfinite().all(1)
    if not is_finite.all():
        row = int((~is_finite).nonzero()[0, 0])
        raise ValueError(
            f"{name} of {int((~is_finite).sum())} of {len(features)} images hold NaN or infinity, "
            f"first in row {row}; must be finite: check the images and the encoder"
        )
