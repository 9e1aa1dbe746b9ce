"""The Gaussian noise that (epsilon, delta) takes, exactly: Balle and Wang, ICML 2018.

The classical sigma = Delta_2 sqrt(2 ln(1.25/delta))/epsilon holds below epsilon 1 only, and is
larger than needed there; this calibration is the smallest there is, for every epsilon.

Own code beside dp-accounting's: that one stops within 1e-7 of sigma whatever its unit, which at
small sensitivities is far from the smallest, and takes 30 ms and its import where this takes 1 ms.
"""

import math
from collections.abc import Callable

from scipy.special import log_ndtr

from fedcel.privacy.epsilon_range import check_epsilon
from fedcel.ranges import FRACTION, POSITIVE

SLACK = 1 + 1e-9  # above rounding: of the search, to a grid, of a sum over it for an integral
HALVINGS = 120


def smallest_delta(epsilon: float, sigma: float, sensitivity: float) -> float:
    """Return the smallest delta that Gaussian noise gives; Balle and Wang, theorem 8.

    Phi(D/2s - eps s/D) - e^eps Phi(-D/2s - eps s/D), `sigma` and `sensitivity` (L2) in one unit.
    """
    shift = sensitivity / (2 * sigma)
    tail = epsilon * sigma / sensitivity
    return _difference(epsilon, shift - tail, -shift - tail)


def least_epsilon(delta: float, shift: float) -> float:
    """Return the least epsilon at `delta` of noise of sigma 1 on means `shift` apart, rounded up.

    Many Gaussians are one, of the root of the sum of squared shifts. ValueError unless delta lies
    in (0, 1) and shift is finite and above 0.
    """
    FRACTION.check("delta", delta)
    POSITIVE.check("shift", shift)
    if smallest_delta(0.0, 1.0, shift) <= delta:
        return 0.0
    _, epsilon = _find_edge(lambda epsilon: smallest_delta(epsilon, 1.0, shift) > delta)
    return SLACK * epsilon


def calibrate_sigma(epsilon: float, delta: float, sensitivity: float) -> float:
    """Return the smallest sigma, rounded up, in the unit of `sensitivity` (L2).

    Balle and Wang, algorithm 1. ValueError unless epsilon and sensitivity are finite and above 0,
    and delta lies in (0, 1).
    """
    check_epsilon(epsilon, "gaussian")
    POSITIVE.check("sensitivity", sensitivity)
    FRACTION.check("delta", delta)

    def b_plus(v: float) -> float:
        """B+, of noise below D/sqrt(2 eps): grows with v."""
        return _difference(epsilon, math.sqrt(epsilon * v), -math.sqrt(epsilon * (v + 2)))

    def b_minus(u: float) -> float:
        """B-, of noise above it: falls with u."""
        return _difference(epsilon, -math.sqrt(epsilon * u), -math.sqrt(epsilon * (u + 2)))

    if delta >= b_plus(0.0):
        v, _ = _find_edge(lambda v: b_plus(v) <= delta)
        alpha = 1 / (math.sqrt(1 + v / 2) + math.sqrt(v / 2))  # their difference, without its loss
    else:
        _, u = _find_edge(lambda u: b_minus(u) > delta)
        alpha = math.sqrt(1 + u / 2) + math.sqrt(u / 2)
    sigma = SLACK * alpha * sensitivity / math.sqrt(2 * epsilon)
    if not sigma < math.inf:
        raise ValueError(f"epsilon is {epsilon}, too small for any finite noise; try 0.5")
    return sigma


def _difference(epsilon: float, a: float, b: float) -> float:
    """Return Phi(a) - e^eps Phi(b), without overflow and with few digits lost."""
    first = float(log_ndtr(a))
    second = epsilon + float(log_ndtr(b))
    if first == -math.inf:
        return 0.0
    return -math.exp(first) * math.expm1(min(second - first, 0.0))  # above 0 by rounding only


def _find_edge(holds: Callable[[float], bool]) -> tuple[float, float]:
    """Return the last number at which a test that holds at 0 holds, and the first that fails."""
    low, high = 0.0, 1.0
    while holds(high):
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low, high
