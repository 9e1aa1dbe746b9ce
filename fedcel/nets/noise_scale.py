"""Scale of the noise of each feature: a learned part of the device's half of a split network."""

from collections.abc import Sequence
from math import log

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

NOISE_LIMIT = 8.0
"""A learned standard deviation is the cut's times this at most, and over this at least."""


class NoiseScale(nn.Module):
    """The standard deviation of each feature's noise, in units of the cut's sigma, learned.

    A message is z~ = z + sigma * s * xi, with s = exp(L tanh(a / L)) and L = log limit: between
    1 / limit and limit, and 1 where a is 0, which is where it starts. One a a feature, or
    a = W z + b, which differs from image to image. The device adds the noise, so that s is trained,
    averaged, frozen and sent with the encoder.

    Args:
        features: D.
        is_of_image: Whether s depends on the image, by its features; else one s a feature.
        limit: Largest s, above 1.

    References:
        Mireshghallah et al., ASPLOS 2020 (one a feature); Alemi et al., ICLR 2017 (of each image).
    """

    def __init__(self, features: int, *, is_of_image: bool, limit: float = NOISE_LIMIT) -> None:
        super().__init__()
        self.log_limit = log(limit)
        # No linear layer: those are drawn at random, and this must start at the cut's own noise.
        self.weight = nn.Parameter(torch.zeros(features, features)) if is_of_image else None
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, z: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        """Return s of each feature, (B, D)."""
        if self.weight is None:
            exponent = self.bias.expand_as(z)
        else:
            exponent = linear(z, self.weight, self.bias)
        return self.bound(exponent)

    def bound(self, exponent: Float[Tensor, "*k B D"]) -> Float[Tensor, "*k B D"]:
        """Return exp(L tanh(a / L)) of exponents a."""
        return (self.log_limit * torch.tanh(exponent / self.log_limit)).exp()


class NoiseScales(nn.Module):
    """Those of several encoders whose features stand in a row.

    Args:
        scales: One an encoder.
    """

    def __init__(self, scales: Sequence[nn.Module]) -> None:
        super().__init__()
        self.scales = nn.ModuleList(scales)

    def forward(self, z: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
        """Return s of the features of all encoders in a row."""
        parts = torch.chunk(z, len(self.scales), -1)
        return torch.cat([scale(part) for scale, part in zip(self.scales, parts, strict=True)], -1)


def whiten_features(
    z: Float[Tensor, "*k D"], scale: Float[Tensor, "*k D"] | None
) -> Float[Tensor, "*k D"]:
    """Express features in units in which the noise of each has the cut's sigma.

    Args:
        z: Features.
        scale: Standard deviations of their noise in units of sigma; None: all are 1.

    Returns:
        z / s, or z itself.
    """
    return z if scale is None else z / scale
