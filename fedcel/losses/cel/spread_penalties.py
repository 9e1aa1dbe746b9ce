"""What a class's spread costs, and each class's share in the loss."""

import math
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.settings import CelSettings, ClassShare, check_penalty

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


def build_penalty(cel: CelSettings, sigma: float, features: int) -> Penalty:
    """Make the penalty that the settings name.

    Args:
        cel: The settings group `cel`.
        sigma: Standard deviation of the noise at the cut, in units of z.
        features: D, the number of values that the noise is added to.

    Returns:
        A function of the classes' spreads.

    Raises:
        SettingsError: sigma is 0 and the penalty divides by it or takes its threshold from it.
    """
    check_penalty(cel, sigma)
    if cel.penalty == "linear":
        return linear_penalty
    if cel.penalty == "channel":
        return partial(channel_penalty, features=features, sigma=sigma)
    return partial(log_penalty, threshold=penalty_threshold(cel, sigma, features))


def penalty_threshold(cel: CelSettings, sigma: float, features: int) -> float:
    """Return tau of the log penalty as set, or tied to the noise on D = `features` values."""
    return THRESHOLD_SHARE * sigma**2 * features if cel.threshold == "none" else cel.threshold


def class_shares(counts: Float[Tensor, "*k C"], share: ClassShare) -> Float[Tensor, "*k C"]:
    """Compute beta, the factor of each class's penalty in the loss.

    Args:
        counts: Members of each class that carry a signal (C,); of several clients (K, C).
        share: `batch-share`: n_c / sum n. `mean-present`: 1 / classes present. `none`: 1 for each
            class that is present.

    Returns:
        beta (C,), 0 for classes with a count of 0: the first two sum to 1, or to 0 when no class
        is present.
    """
    part = counts if share == "batch-share" else (counts > 0).to(counts.dtype)
    return part if share == "none" else part / part.sum(-1, keepdim=True).clamp_min(1)
