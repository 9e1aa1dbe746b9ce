"""What a class's spread costs, and each class's share in the loss."""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.settings import CelSettings, check_penalty

Penalty = Callable[[Float[Tensor, " C"]], Float[Tensor, " C"]]
Share = Literal["batch-share", "mean-present", "none"]

EPS = 1e-6
"""Keeps the logarithm of a spread of 0 finite; in units of z squared."""

THRESHOLD = 0.125
"""Default tau of `log_penalty`, in units of sigma^2 D, the noise's own spread."""


def linear_penalty(v: Float[Tensor, " C"]) -> Float[Tensor, " C"]:
    """Return R(v) = v, in units of z squared."""
    return v


def log_penalty(v: Float[Tensor, " C"], threshold: float) -> Float[Tensor, " C"]:
    """Return R(v) = max(0, ln((v + eps)/(tau + eps))), which is 0 up to the threshold tau.

    Xia et al., CVPR 2025: the hinge on the entropy surrogate log v. v and tau in units of z
    squared, tau > 0.
    """
    return torch.log(v + EPS).sub(math.log(threshold + EPS)).relu()


def channel_penalty(v: Float[Tensor, " C"], features: int, sigma: float) -> Float[Tensor, " C"]:
    """Return R(v) = (D/2) log(1 + v / (D sigma^2)), in nats.

    The capacity of D parallel Gaussian channels with noise variance sigma^2 > 0 that share the
    signal power v evenly (Cover and Thomas, Elements of Information Theory, eq. 9.17).
    """
    return features / 2 * torch.log1p(v / (features * sigma**2))


def build_penalty(cel: CelSettings, sigma: float, features: int) -> Penalty:
    """Return the penalty that the settings name, for noise sigma on D = `features` values.

    SettingsError where sigma is 0 and the penalty divides by it or takes its threshold from it.
    """
    check_penalty(cel, sigma)
    if cel.penalty == "linear":
        return linear_penalty
    if cel.penalty == "channel":
        return partial(channel_penalty, features=features, sigma=sigma)
    return partial(log_penalty, threshold=penalty_threshold(cel, sigma, features))


def penalty_threshold(cel: CelSettings, sigma: float, features: int) -> float:
    """Return tau of the log penalty as set, or tied to the noise on D = `features` values."""
    return THRESHOLD * sigma**2 * features if cel.threshold == "none" else cel.threshold


def class_shares(counts: Float[Tensor, " C"], share: Share) -> Float[Tensor, " C"]:
    """Return beta, each class's factor in the loss, from its members that carry a signal.

    `batch-share`: n_c / sum n; `mean-present`: 1 / classes present; `none`: 1 if present. Classes
    with a count of 0 get 0, so that the first two sum to 1, or to 0 when no class is present.
    """
    part = counts if share == "batch-share" else (counts > 0).to(counts.dtype)
    return part if share == "none" else part / part.sum().clamp_min(1)
