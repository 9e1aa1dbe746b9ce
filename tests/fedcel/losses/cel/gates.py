"""Learned weightings of small features, and their gradients."""

from typing import Any, Literal

import torch
from torch import Tensor

from fedcel.losses.cel.gated import Gated
from fedcel.losses.protocol import State
from tests.fedcel.losses.single import single, split_features

Attention = Literal["ascend", "minimise", "detach", "floor"]

MODES: list[Attention] = ["ascend", "minimise", "detach", "floor"]


def gated(attention: Attention, features: int = 4) -> Any:
    """Return the linear loss; its value is the share-weighted spread itself."""
    return single(Gated(penalty="linear", attention=attention), 3, features)


def example(seed: int, count: int = 9) -> tuple[Tensor, Tensor, State]:
    """Return features in float64, labels of 3 classes, and a state that fits them."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(count, 4, generator=generator).double()
    y = torch.arange(count) % 3
    return z, y, gated("ascend").refresh(None, split_features(z, y), generator)


def slopes(mine: Any, z: Tensor, y: Tensor, state: State) -> tuple[Tensor, Tensor]:
    """Return the gradients of the loss at z and theta."""
    loss = mine.loss(state, z, y).loss
    first, second = torch.autograd.grad(loss, (z, state["theta"]))
    return first, second
