"""95 % intervals, one rule for a share of cases and one for a mean, wherever one is printed.

The spread of a sample says nothing of what no case showed. An event that is missing in n
independent cases has a chance below 3.69 / n, with 97.5 % confidence: so far may the end of an
interval be off, times what the event costs, however equal the cases are.
"""

from math import ceil, hypot, log, sqrt

import scipy
from jaxtyping import Float
from torch import Tensor

NORMAL_QUANTILE = 1.959964  # of 97.5 %
UNSEEN_EVENTS = -log(0.025)  # expected number of events where there was none, at most


def share_interval(share: float, count: int) -> tuple[float, float]:
    """Compute the ends of the interval of a share of independent cases; ValueError without any.

    References:
        Wilson, JASA 1927: the score interval.
    """
    if count < 1:
        raise ValueError(f"{count} cases, must be 1 or more")
    square = NORMAL_QUANTILE**2 / count
    centre = share + square / 2
    half = NORMAL_QUANTILE * sqrt(share * (1 - share) / count + square / (4 * count))
    return max(0.0, (centre - half) / (1 + square)), min(1.0, (centre + half) / (1 + square))


def mean_half_width(
    mean: float,
    variance: float,
    freedom: float | int,
    *,
    low: float | int,
    high: float | int,
    rare: float | int,
) -> float:
    """Compute the half width of the interval of a mean of independent values.

    Args:
        mean: Of the values.
        variance: Of the mean.
        freedom: Degrees of freedom that the variance was estimated with, above 0.
        low: Least that the expectation can be.
        high: Largest that it can be; no interval reaches beyond both.
        rare: What an event changes in one value, over the number of values.

    Returns:
        Student's half width and, in quadrature, what an event that none showed may add.
    """
    student = float(scipy.special.stdtrit(freedom, 0.975)) * sqrt(variance)
    return min(hypot(student, UNSEEN_EVENTS * rare), max(mean - low, high - mean, 0.0))


def sample_half_width(values: Float[Tensor, " N"], *, low: float | int, high: float | int) -> float:
    """Compute the half width of the interval of the mean of a sample.

    Args:
        values: Independent draws of one law, (N,); N is 1 or more.
        low: Least that a value can be, but for chance in itself.
        high: Largest that it can be.

    Returns:
        The half width; of a single value all that is possible.
    """
    mean, count = float(values.double().mean()), len(values)
    if count < 2:
        return max(mean - low, high - mean, 0.0)
    variance = float(values.double().var()) / count
    rare = (high - low) / count
    return mean_half_width(mean, variance, count - 1, low=low, high=high, rare=rare)


def round_up(half_width: float, digits: int) -> str:
    """Format the half width of an interval, no narrower than it is.

    Args:
        half_width: 0 or more, finite.
        digits: Decimals that are shown.

    Returns:
        Such as `0.1`.
    """
    return f"{ceil(half_width * 10**digits - 1e-6) / 10**digits:.{digits}f}"
