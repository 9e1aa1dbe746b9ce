"""Means over seeds and their intervals."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import scipy

MIN_SEEDS = 3
"""Seeds below which no interval is given."""


@dataclass(frozen=True)
class Estimate:
    """A mean over n values; `half` is half the width of its 95 % t-interval, `sd` their spread."""

    mean: float | None = None
    half: float | None = None
    sd: float | None = None
    n: int = 0


UNKNOWN = Estimate()
"""The estimate of what was not measured."""


def estimate(values: Iterable[float | None]) -> Estimate:
    """Return the mean of values, and Student's 95 % interval from three values on.

    Args:
        values: One measure's values under several seeds; None is left out.

    Returns:
        The estimate, `UNKNOWN` of no value.
    """
    numbers = [value for value in values if value is not None]
    if not numbers:
        return UNKNOWN
    mean = sum(numbers) / len(numbers)
    if len(numbers) < 2:
        return Estimate(mean, n=len(numbers))
    sd = math.sqrt(sum((value - mean) ** 2 for value in numbers) / (len(numbers) - 1))
    t = float(scipy.stats.t.ppf(0.975, len(numbers) - 1))
    half = t * sd / math.sqrt(len(numbers)) if len(numbers) >= MIN_SEEDS else None
    return Estimate(mean, half, sd, len(numbers))
