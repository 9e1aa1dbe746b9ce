"""Levels of noise that the sliders ask for, and messages that attackers of known noise train on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.leakage import FREE_QUERIES
from fedcel.nets import SplitNet

FACTORS = tuple(2.0 ** (power / 2) for power in range(-6, 7))
"""Multiples of the noise that a network was trained with."""
MESSAGE_COUNTS = (1, 2, 4, 8, 16, 32, 64)
"""Messages of one image, each with fresh noise."""


class NoiseLevel(NamedTuple):
    """Mean of so many messages in noise `factor` times that of the training."""

    factor: float
    messages: int


def list_levels(net: SplitNet) -> list[NoiseLevel]:
    """Return the levels that differ, of all that the sliders ask for.

    In Gaussian noise the mean of several messages is one in less noise, so that a level is its
    factor over the root of their number. Under dropout each is its own.
    """
    pairs = [NoiseLevel(factor, count) for factor in FACTORS for count in MESSAGE_COUNTS]
    return sorted({find_level(net, level) for level in pairs})


def find_level(net: SplitNet, level: NoiseLevel) -> NoiseLevel:
    """Return the level that stands for all whose mean message has the same law."""
    factor = level.factor if net.cut.sigma else 1.0
    if net.cut.dropout:
        return NoiseLevel(factor, level.messages)
    if not net.cut.sigma:
        return NoiseLevel(1.0, 1)
    half_octaves = round(2 * math.log2(factor / level.messages**0.5))
    return NoiseLevel(2.0 ** (half_octaves / 2), 1)


def describe_level(net: SplitNet, level: NoiseLevel) -> list[float]:
    """Return the numbers that tell a decoder how noisy a message is; none where all are alike."""
    numbers = []
    if net.cut.sigma:
        numbers.append(math.log2(level.factor / level.messages**0.5))
    if net.cut.dropout:
        numbers.append(math.log2(level.messages))
    return numbers


@dataclass(frozen=True)
class MeanMessage:
    """Mean of several messages of an image, as an observation whose noise varies."""

    net: SplitNet
    levels: Sequence[NoiseLevel]
    is_described: bool
    """Whether the level stands behind the features, see `describe_level`."""
    name: str = "smashed-data"

    @property
    def grants(self) -> frozenset[str]:
        """Return what an attacker may use: as many messages of its own images as it likes."""
        return frozenset({FREE_QUERIES})

    def sample(
        self, images: Float[Tensor, "B C H W"], generator: torch.Generator
    ) -> Float[Tensor, "B F"]:
        """Send each image so often as its level says, and return the mean."""
        cut = self.net.cut
        with torch.no_grad():
            z = self.net.encode_all(images)
            scale = self.net.scale_noise(z)
        picks = torch.randint(len(self.levels), (len(z),), generator=generator)
        chosen = [self.levels[pick] for pick in picks.tolist()]
        counts = torch.tensor([float(level.messages) for level in chosen])[:, None]
        mean = z.double()
        if cut.dropout:
            chance = torch.full_like(z, 1 - cut.dropout)
            mean = mean * torch.binomial(counts.expand_as(z), chance, generator=generator) / counts
        if cut.sigma:
            factors = torch.tensor([level.factor for level in chosen])[:, None]
            xi = torch.randn(z.shape, generator=generator, dtype=torch.float64)
            spread = cut.sigma * factors / counts.sqrt()
            mean = mean + xi * (spread if scale is None else spread * scale)
        message = mean.to(z.dtype)
        if not self.is_described:
            return message
        numbers = torch.tensor([describe_level(self.net, level) for level in chosen])
        return torch.cat([message, numbers.view(len(message), -1)], 1)
