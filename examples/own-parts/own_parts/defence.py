"""A defence that changes what is sent: the largest values of a code, the others as 0."""

import torch
from torch import Tensor

from fedcel import Settings


class Largest:
    """Keeps the `defence.strength` largest values of each code.

    Small values tell images of a class apart and classes hardly. Which values are left tells
    something too: what that is worth to an attacker is measured, not argued.
    """

    def __init__(self, settings: Settings, shape: tuple[int, ...]) -> None:
        self.keep = min(int(settings.defence.strength), settings.net.features)
        if self.keep < 1:
            raise ValueError(f"defence.strength is {settings.defence.strength}, must be 1 or more")

    def transform(self, z: Tensor) -> Tensor:
        """Return z (B, D) with zeros; the gradient is that of the values kept."""
        kept = z.abs().topk(self.keep, 1).indices
        return z * torch.zeros_like(z).scatter(1, kept, 1.0)
