"""Tensors and NumPy arrays alike: whoever gives one kind of rows gets the same kind back."""

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

Array = TypeVar("Array", Tensor, np.ndarray)
"""A tensor or a NumPy array; one call has one kind of them."""


def to_tensor(values: Tensor | np.ndarray) -> Tensor:
    """Return the same values as a tensor; ValueError where they are no numbers."""
    if isinstance(values, Tensor):
        return values
    array = np.ascontiguousarray(values)
    if array.dtype.kind not in "fiub":
        raise ValueError(
            f"values are {array.dtype}, must be numbers; labels are the places of classes, for "
            "scikit-learn numpy.searchsorted(model.classes_, labels)"
        )
    # PyTorch takes neither the other order of bytes nor what must not be written.
    plain = array.astype(array.dtype.newbyteorder("="), copy=not array.flags.writeable)
    return torch.from_numpy(plain)


def match_kind(values: Tensor, like: Array) -> Array:
    """Return a tensor's values as the kind of array that `like` is."""
    return values if isinstance(like, Tensor) else values.numpy()
