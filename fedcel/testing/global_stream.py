"""Torch's global stream of random numbers, which no part may use or move."""

from collections.abc import Callable
from typing import TypeVar

import torch

Made = TypeVar("Made")


def make_twice(make: Callable[[], Made]) -> tuple[Made, Made]:
    """Return what two calls make, one before and one after the global stream has moved."""
    before = torch.random.get_rng_state()
    first = make()
    assert torch.equal(torch.random.get_rng_state(), before), "it draws from the global stream"
    torch.rand(3)
    second = make()
    torch.random.set_rng_state(before)
    return first, second
