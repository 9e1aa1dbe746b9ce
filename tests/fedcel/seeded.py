"""Streams of random numbers, and observations whose features are the images themselves."""

import torch
from torch import Tensor, nn

from fedcel.leakage import SmashedData
from fedcel.nets import Cut, SplitNet


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pixels(
    sigma: float, dropout: float = 0.0, *, noise_scale: nn.Module | None = None
) -> SmashedData:
    """Return an observation whose code is the image itself."""
    cut = Cut(sigma, dropout)
    return SmashedData(SplitNet(nn.Flatten(), nn.Identity(), cut, 1, noise_scale=noise_scale))


def as_images(codes: Tensor) -> Tensor:
    """Return images (M, 1, 1, D) whose codes are the rows."""
    return codes[:, None, None, :]
