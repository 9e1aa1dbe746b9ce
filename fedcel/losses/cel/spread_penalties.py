"""Penalties of a class's spread."""

import math
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from fedcel.losses.cel.conditional_entropy import CEL, require_noise
from fedcel.losses.protocol import CutShape
from fedcel.options import Off, Positive

Penalty = Callable[[Float[Tensor, "*k C"]], Float[Tensor, "*k C"]]
"""From the spreads of the classes, in units of z squared, to what each of them costs."""

LOG_OFFSET = 1e-6
"""Keeps the logarithm of a spread of 0 finite; in units of z squared."""

THRESHOLD_SHARE = 0.125
"""Default tau of `log_penalty`, as a share of sigma^2 D, the noise's own spread."""


def linear_penalty(v: Float[Tensor, "*k C"]) -> Float[Tensor, "*k C"]:
    """Charge the spread itself: R(v) = v.

    Args:
        v: Spread of each class (C,), in units of z squared, 0 or more.

    Returns:
        R (C,), in units of z squared.
    """
    return v


def log_penalty(v: Float[Tensor, "*k C"], threshold: float) -> Float[Tensor, "*k C"]:
    """Charge the logarithm of the spread above a threshold, and nothing below it.

    R(v) = max(0, ln((v + eps) / (tau + eps))).

    Args:
        v: Spread of each class (C,), in units of z squared, 0 or more.
        threshold: tau, in units of z squared, above 0.

    Returns:
        R (C,), in nats.

    References:
        Xia et al., CVPR 2025: the hinge on the entropy surrogate log v.
    """
    return torch.log(v + LOG_OFFSET).sub(math.log(threshold + LOG_OFFSET)).relu()


def channel_penalty(v: Float[Tensor, "*k C"], features: int, sigma: float) -> Float[Tensor, "*k C"]:
    """Charge what a noisy channel could carry of the spread: R(v) = (D/2) ln(1 + v/(D sigma^2)).

    Args:
        v: Spread of each class (C,), in units of z squared, 0 or more.
        features: D.
        sigma: Standard deviation of the noise at the cut, in units of z, above 0.

    Returns:
        R (C,), in nats.

    References:
        Cover and Thomas, Elements of Information Theory, eq. 9.17: the capacity of D parallel
        Gaussian channels that share the signal power v evenly.
    """
    return features / 2 * torch.log1p(v / (features * sigma**2))


class SpreadCEL(CEL):
    """Conditional entropy loss that charges the spread of each class."""

    penalty: Literal["linear", "log", "channel"] = Field(
        "channel", description="R(v) of spread v; channel: (D/2)log(1+v/(D sigma^2))."
    )
    threshold: Positive | Off = Field(
        "none", description="Tau of the log penalty; none: 0.125 sigma^2 D."
    )

    @property
    def has_threshold(self) -> bool:
        """Whether a spread below a threshold costs nothing."""
        return self.penalty == "log"

    def find_threshold(self, cut: CutShape) -> float:
        """Return tau of the log penalty as set, or tied to the noise on the features seen."""
        if self.threshold != "none":
            return self.threshold
        return THRESHOLD_SHARE * cut.sigma**2 * cut.features

    def check_noise(self, sigma: float) -> None:
        """Refuse a penalty that needs the noise where there is none; see `CEL.check_noise`."""
        if self.penalty == "channel" or (self.penalty == "log" and self.threshold == "none"):
            require_noise("penalty", self.penalty, sigma, instead="linear")

    def charge(self, v: Float[Tensor, "*k C"]) -> Float[Tensor, "*k C"]:
        """Compute R, what the spread v of each class costs."""
        if self.penalty == "linear":
            return linear_penalty(v)
        if self.penalty == "channel":
            return channel_penalty(v, self._cut.features, self._cut.sigma)
        return log_penalty(v, self.find_threshold(self._cut))

    def _name_penalty(self) -> str:
        """Return how messages name the penalty."""
        return f"cel.penalty {self.penalty!r}, "
