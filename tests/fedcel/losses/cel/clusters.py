"""The loss of clusters on points whose centres are known."""

from typing import Literal

import torch
from torch import Tensor

from fedcel.losses import ClientLoss
from fedcel.losses.cel import Cluster
from tests.fedcel.losses.single import single

POINTS = torch.tensor(
    [
        *[[0.0, 0.0], [0.2, 0.1], [-0.1, 0.05], [0.15, -0.05]],
        *[[1.0, 1.0], [1.2, 1.1], [0.8, 0.9], [1.1, 0.95]],
        *[[1.0, -1.0], [0.8, -0.9], [1.1, -1.2], [0.9, -1.05]],
    ]
).double()
LABELS = torch.arange(12) // 4


def cluster(clusters: int, classes: int = 3, original: bool = False) -> ClientLoss:
    """Return the linear loss; its value is the share-weighted spread itself."""
    form: Literal["original", "renormalised"] = "original" if original else "renormalised"
    return single(Cluster(penalty="linear", clusters=clusters, form=form), classes)


def fresh(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def blobs() -> tuple[Tensor, Tensor]:
    """Return 60 points of one class around three far corners."""
    corners = torch.tensor([[0.0, 0], [9, 0], [0, 9]]).repeat(20, 1).double()
    noise = torch.randn(60, 2, generator=fresh(5)).double()
    return corners + 0.1 * noise, torch.zeros(60, dtype=torch.long)
