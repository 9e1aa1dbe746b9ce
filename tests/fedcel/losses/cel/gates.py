"""Learned weightings of small features, and their gradients."""

import torch
from torch import Tensor

from fedcel.losses.cel.gated import Gated
from fedcel.losses.cel.spread_penalties import linear_penalty
from fedcel.losses.protocol import State, split_features
from fedcel.settings import Attention

MODES: list[Attention] = ["ascend", "minimise", "detach", "floor"]


def gated(
    attention: Attention,
    hidden: int = 5,
    rate: float = 0.1,
    floor: float = 0.5,
    features: int = 4,
    entropy: float = 0.0,
) -> Gated:
    """Return the linear loss; its value is the share-weighted spread itself."""
    return Gated(
        *(linear_penalty, "batch-share", 3, features),
        attention=attention,
        floor=floor,
        hidden=hidden,
        rate=rate,
        entropy=entropy,
    )


def example(seed: int, count: int = 9) -> tuple[Tensor, Tensor, State]:
    """Return features in float64, labels of 3 classes, and a state that fits them."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(count, 4, generator=generator).double()
    y = torch.arange(count) % 3
    return z, y, gated("ascend").refresh(None, split_features(z, y), generator)


def slopes(mine: Gated, z: Tensor, y: Tensor, state: State) -> tuple[Tensor, Tensor]:
    """Return the gradients of the loss at z and theta."""
    loss = mine.loss(state, z, y).loss
    first, second = torch.autograd.grad(loss, (z, state["theta"]))
    return first, second
