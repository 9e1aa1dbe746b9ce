"""A defence that changes what is sent: the largest features of an image, the others as 0."""

import torch
from torch import Tensor

from fedcel import Settings


class Largest:
    """Keeps the `defence.strength` largest features of each image.

    Small values tell images of a class apart and classes hardly. Which features are not 0 tells
    something too: what that is worth to an attacker is measured, not argued.
    """

    def __init__(self, settings: Settings, shape: tuple[int, ...]) -> None:
        self.count = min(int(settings.defence.strength), settings.net.features)
        if self.count < 1:
            raise ValueError(f"defence.strength is {settings.defence.strength}, must be 1 or more")

    def transform(self, z: Tensor) -> Tensor:
        """Return z (B, D) with zeros; only the largest features have a gradient."""
        largest = z.abs().topk(self.count, 1).indices
        return z * torch.zeros_like(z).scatter(1, largest, 1.0)
