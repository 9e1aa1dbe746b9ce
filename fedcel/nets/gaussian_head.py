"""A head for a number that is known to its bin: Gaussian, of one standard deviation or of many."""

from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn

LOG_RANGE = 4.0
"""Largest size of the logarithm of the standard deviation in units of a bin's width."""


class GaussianHead(nn.Module):
    """Logits of K ordered classes, the bins of equal width of a number y in [0, 1].

    y is N(m, s^2) given z, m = 1/2 + (w z + b)/K. The logit of bin k is the log-probability that y
    is in it, ln(Phi(((k + 1)/K - m)/s) - Phi((k/K - m)/s)), where the outer bins have no end. So
    cross-entropy is the likelihood of a Gaussian regression whose targets are known to their bins,
    and softmax gives these probabilities back.

    s = exp(1 + L tanh(a/L))/K: a is one parameter, or a linear map of z (heteroscedastic). It
    starts near 2.7 bins, in the middle: plain SGD would run away from a narrow one.

    Args:
        features: D.
        classes: K, 2 or more.
        is_heteroscedastic: Whether each image has a standard deviation of its own.

    References:
        Nix and Weigend, ICNN 1994: a network that gives mean and variance.
    """

    def __init__(self, features: int, classes: int, *, is_heteroscedastic: bool) -> None:
        """Make the layers."""
        super().__init__()
        self.classes = classes
        self.mean = nn.Linear(features, 1)
        self.log_sd: nn.Module = nn.Linear(features, 1) if is_heteroscedastic else _OneNumber()

    def describe(self, smashed: Float[Tensor, "B D"]) -> tuple[Tensor, Tensor]:
        """Compute mean and standard deviation of y, (B, 1) each, in units of y in [0, 1]."""
        exponent = LOG_RANGE * torch.tanh(self.log_sd(smashed) / LOG_RANGE)
        mean: Tensor = 0.5 + self.mean(smashed) / self.classes
        return mean, (1 + exponent).exp().expand_as(mean) / self.classes

    def forward(self, smashed: Float[Tensor, "B D"]) -> Float[Tensor, "B K"]:
        """Compute the log-probability of each bin."""
        mean, deviation = self.describe(smashed)
        steps = torch.arange(1, self.classes, dtype=smashed.dtype, device=smashed.device)
        at_edges = (steps / self.classes - mean) / deviation
        inner = log_interval(at_edges[..., :-1], at_edges[..., 1:])
        return torch.cat([log_phi(at_edges[..., :1]), inner, log_phi(-at_edges[..., -1:])], -1)


class _OneNumber(nn.Module):
    """A parameter instead of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(1))

    def forward(self, hidden: Float[Tensor, "B D"]) -> Float[Tensor, "1"]:
        return self.value


def log_interval(
    low: Float[Tensor, "*shape"], high: Float[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """Compute ln(Phi(high) - Phi(low)), low below high, without cancelling far from 0."""
    is_right = low + high > 0  # the tail on the left has the same probability, and its digits
    lower, upper = torch.where(is_right, -high, low), torch.where(is_right, -low, high)
    log_upper = log_phi(upper)
    return log_upper + torch.log(-torch.expm1(log_phi(lower) - log_upper))


def log_phi(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Compute ln Phi(x), as `torch.special.log_ndtr`, which `torch.vmap` has no rule for."""
    below, above = x.clamp_max(0.0), x.clamp_min(0.0)
    tail = torch.log(torch.special.erfcx(-below / sqrt(2)) / 2) - below.square() / 2
    return torch.where(x < 0, tail, torch.log1p(-torch.erfc(above / sqrt(2)) / 2))
