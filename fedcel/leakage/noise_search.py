"""Search for a standard deviation of noise by bisection."""

from collections.abc import Callable
from math import inf

LEAST_NOISE, MOST_NOISE = 2.0**-12, 2.0**6
"""Range of the search, in units of the features' root mean square."""
SEARCH_STEPS = 8
"""Evaluations of a search: neighbours of its 255 levels differ by 5 %."""


def bracket_noise(is_little: Callable[[float], bool]) -> tuple[float, float]:
    """Find the level of noise at which a claim that holds of little noise ceases to hold.

    Levels are evenly spaced in their logarithms. A claim that implies another brackets no more
    noise than that other, whether or not the claims are monotone in the noise.

    Args:
        is_little: Whether a standard deviation, in units of the features' root mean square, is
            little enough. It must give the same answer each time.

    Returns:
        The most noise of which it holds, 0 where it holds of none, and the next level, of which it
        does not hold; infinite where it holds of all.
    """
    low, high = 0, 2**SEARCH_STEPS  # outside of the levels
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_little(noise_level(middle)) else (low, middle)
    return noise_level(low), noise_level(high)


def noise_level(number: int) -> float:
    """Return the level of a number: 0, then from `LEAST_NOISE` to `MOST_NOISE`, then infinite."""
    last = 2**SEARCH_STEPS - 1
    if not 1 <= number <= last:
        return inf if number else 0.0
    return float(LEAST_NOISE * (MOST_NOISE / LEAST_NOISE) ** ((number - 1) / (last - 1)))
