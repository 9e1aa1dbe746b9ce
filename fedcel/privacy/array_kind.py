"""Tensors and NumPy arrays alike: whoever gives one kind of rows gets the same kind back."""

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

Array = TypeVar("Array", Tensor, np.ndarray)
"""A tensor or a NumPy array; one call has one kind of them."""


def to_tensor(values: Tensor | np.ndarray) -> Tensor:
    """Return the same values as a tensor."""
    return values if isinstance(values, Tensor) else torch.from_numpy(np.ascontiguousarray(values))


def match_kind(values: Tensor, like: Array) -> Array:
    """Return a tensor's values as the kind of array that `like` is."""
    return values if isinstance(like, Tensor) else values.numpy()
