"""Noise and dropout between encoder and head: the law that the optimal attacker uses.

The noise of each feature can have a scale that is learned with the encoder.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import linear

NOISE_LIMIT = 8.0
"""A learned standard deviation is the cut's times this at most, and over this at least."""
NoiseShape = Literal["one", "feature", "image"]
"""Whether one standard deviation is for all, or one is learned a feature, or by image as well."""


@dataclass(frozen=True)
class Cut:
    """Turns features z into smashed data z~ = m * z + sigma * xi.

    Each value is kept with chance 1 - dropout, then noise is added: xi ~ N(0, I) and the mask
    m ~ Bernoulli(1 - dropout)^D are drawn afresh for every image, in training and in use.

    Args:
        sigma: Standard deviation of the noise, in units of z, 0 or more.
        dropout: Chance that a value is sent as 0, in [0, 1).
    """

    sigma: float = 0.0
    dropout: float = 0.0

    @property
    def is_random(self) -> bool:
        """Whether the same features give different smashed data."""
        return self.sigma > 0 or self.dropout > 0

    def draw_mask(
        self, shape: tuple[int, ...], generator: torch.Generator
    ) -> Bool[Tensor, "*shape"] | None:
        """Draw which values are kept; None where all are."""
        if self.dropout == 0:
            return None
        return torch.rand(shape, generator=generator, dtype=torch.float32) >= self.dropout

    def draw_noise(
        self,
        shape: tuple[int, ...],
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> Float[Tensor, "*shape"] | None:
        """Draw the noise sigma * xi; None where sigma is 0."""
        if self.sigma == 0:
            return None
        return torch.randn(shape, generator=generator, dtype=dtype) * self.sigma

    def disturb(
        self,
        z: Float[Tensor, "*shape"],
        generator: torch.Generator,
        scale: Float[Tensor, "*shape"] | None = None,
    ) -> Float[Tensor, "*shape"]:
        """Make smashed data z~ from features, of their dtype; z itself when nothing is random.

        `scale` is the standard deviation of each value's noise in units of sigma; None: all are 1.
        """
        shape = tuple(z.shape)
        mask = self.draw_mask(shape, generator)
        return apply_noise(z, mask, self.draw_noise(shape, generator, torch.float64), scale)

    def log_prob(
        self,
        smashed: Float[Tensor, "Q D"],
        z: Float[Tensor, "M D"],
        scale: Float[Tensor, "M D"] | None = None,
    ) -> Float[Tensor, "Q M"]:
        """Compute log p(z~_q | z_j) in nats and float64, up to one constant for all pairs.

        Values are independent given z: each is N(z, sigma^2), or with dropout p the mixture
        (1 - p) N(z, sigma^2) + p N(0, sigma^2), at sigma 0 a choice between z and 0. With a scale
        each is N(z, (sigma s)^2): where s differs from image to image, so does the determinant.
        Distances are sums of squared differences: the expansion |a|^2 - 2ab + |b|^2 loses all
        digits when sigma is small, and breaks ties between equals.

        Raises:
            ValueError: Nothing is random, or values are dropped and their noise is scaled.
        """
        if not self.is_random:
            raise ValueError("sigma is 0: z~ has no density; an attacker compares features instead")
        smashed, z = smashed.double(), z.double()
        if scale is not None:
            return self._scaled_log_prob(smashed, z, self.sigma * scale.double())
        if self.dropout == 0:
            distance = torch.cdist(
                smashed / self.sigma, z / self.sigma, compute_mode="donot_use_mm_for_euclid_dist"
            )
            return distance.square() / -2
        total = z.new_zeros(len(smashed), len(z))
        # One feature at a time: (Q, M, D) at once would not fit for thousands of images.
        for sent, value in zip(smashed.T, z.T, strict=True):
            total += self._dropout_log_prob(sent[:, None], value[None])
        return total

    def _scaled_log_prob(
        self,
        smashed: Float[Tensor, "Q D"],
        z: Float[Tensor, "M D"],
        deviation: Float[Tensor, "M D"],
    ) -> Float[Tensor, "Q M"]:
        if self.dropout > 0 or self.sigma == 0:
            raise ValueError(
                f"dropout is {self.dropout}, sigma {self.sigma}: noise of a learned scale needs "
                "dropout 0 and sigma above 0"
            )
        if (deviation == deviation[0]).all():  # the same determinant for all images
            return Cut(1.0).log_prob(smashed / deviation[0], z / deviation[0])
        total = -deviation.log().sum(1).expand(len(smashed), -1).contiguous()
        # One feature at a time: (Q, M, D) at once would not fit for thousands of images.
        for sent, value, spread in zip(smashed.T, z.T, deviation.T, strict=True):
            total -= ((sent[:, None] - value) / spread).square_().div_(2)
        return total

    def dropout_misfit(
        self, z: Float[Tensor, "B D"], observed: Float[Tensor, "B D"]
    ) -> Float[Tensor, " B"]:
        """Compute the mean over values of -2 sigma^2 log p(z~ | z) under dropout, row by row.

        With a gradient, up to a constant; unit of z squared. At sigma 0, where that has no
        gradient: the squared gap of what came through, a value of 0 says nothing.
        """
        if self.sigma == 0:
            return torch.where(torch.eq(observed, 0.0), 0.0, (observed - z).square()).mean(1)
        return -2 * self.sigma**2 * self._dropout_log_prob(observed, z).mean(1)

    def _dropout_log_prob(
        self, sent: Float[Tensor, "#Q #M"], value: Float[Tensor, "#Q #M"]
    ) -> Float[Tensor, "Q M"]:
        log_keep, log_drop = log(1 - self.dropout), log(self.dropout)
        if self.sigma == 0:
            impossible = -torch.inf
            log_kept = torch.where(torch.eq(sent, value), log_keep, impossible)
            log_dropped = torch.where(torch.eq(sent, 0.0), log_drop, impossible)
        else:
            log_kept = log_keep - (sent - value).square() / (2 * self.sigma**2)
            log_dropped = log_drop - sent.square() / (2 * self.sigma**2)
        return torch.logaddexp(log_kept, log_dropped.expand_as(log_kept))


def apply_noise(
    z: Float[Tensor, "*shape"],
    mask: Bool[Tensor, "*shape"] | None,
    noise: Float[Tensor, "*shape"] | None,
    scale: Float[Tensor, "*shape"] | None = None,
) -> Float[Tensor, "*shape"]:
    """Apply a mask and noise that were drawn before.

    The noise is of double precision, and so is the sum before it is rounded. In single precision
    the low bits of most sums tell which z they can be a sum of, and with them the image, at any
    sigma (Mironov, CCS 2012): the law of `Cut` would not be that of what is sent.

    Args:
        z: Features of any shape.
        mask: Which values are kept, or None for all.
        noise: What is added, in units of z, or None.
        scale: Factor of each value's noise; None: all are 1.

    Returns:
        m * z + scale * noise, in the precision of z.
    """
    masked = z if mask is None else z * mask
    if noise is not None and scale is not None:
        noise = noise * scale
    return masked if noise is None else (masked.double() + noise).to(z.dtype)


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


def build_noise_scale(shape: NoiseShape, features: int) -> NoiseScale | None:
    """Build the scale of the noise of D features.

    Args:
        shape: Whether the standard deviations are learned, and of what.
        features: D.

    Returns:
        The scale; None for `one`, where nothing is learned.
    """
    return None if shape == "one" else NoiseScale(features, is_of_image=shape == "image")


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
