"""The Gaussian noise that (epsilon, delta) takes, exactly: Balle and Wang, ICML 2018.

The classical sigma = Delta_2 sqrt(2 ln(1.25/delta))/epsilon holds below epsilon 1 only, and is
larger than needed there; this calibration is the smallest there is, for every epsilon.

Own code beside dp-accounting's: that one stops within 1e-7 of sigma whatever its unit, which at
small sensitivities is far from the smallest, and takes 30 ms and its import where this takes 1 ms.
"""

import math
from collections.abc import Callable

from scipy.special import erfcx, ndtr

from fedcel.privacy.epsilon_range import check_epsilon
from fedcel.ranges import FRACTION, POSITIVE

SLACK = 1 + 1e-9  # above rounding: of the search, to a grid, of a sum over it for an integral
HALVINGS = 60  # of a range whose end is twice its beginning
ROUNDING = 32 * 2.0**-53  # of a few operations and erfcx, relative


def smallest_delta(epsilon: float, sigma: float, sensitivity: float) -> float:
    """Return the smallest delta that Gaussian noise gives, rounded up; Balle and Wang, theorem 8.

    Phi(a) - e^eps Phi(b) at a, b = +-D/2s - eps s/D, `sigma` and `sensitivity` (L2) in one unit.
    e^eps Phi(b) is e^(-a^2/2) erfcx(-b/sqrt 2)/2, where nothing overflows or cancels.
    """
    shift = sensitivity / (2 * sigma)
    tail = epsilon * sigma / sensitivity
    a, width = shift - tail, shift + tail
    half = math.exp(-a * a / 2) / 2
    first = half * float(erfcx(-a / math.sqrt(2))) if a < 0 else float(ndtr(a))
    second = half * float(erfcx(width / math.sqrt(2)))
    # Roundings of a and b are relative to `width`, and move both by less than `half` times as much.
    moved = half * width if half else 0.0  # the width may be infinite
    return max(first - second, 0.0) + ROUNDING * (first + second + moved)


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

    Balle and Wang, theorem 8, whose delta grows with sensitivity over sigma. ValueError unless
    epsilon and sensitivity are finite and above 0, and delta lies in (0, 1).
    """
    check_epsilon(epsilon, "gaussian")
    POSITIVE.check("sensitivity", sensitivity)
    FRACTION.check("delta", delta)
    ratio = _find_edge(lambda ratio: smallest_delta(epsilon, 1.0, ratio) <= delta)[0]
    sigma = SLACK * sensitivity / ratio
    if not sigma < math.inf:
        raise ValueError(f"epsilon is {epsilon}, too small for any finite noise; try 0.5")
    return sigma


def _find_edge(holds: Callable[[float], bool]) -> tuple[float, float]:
    """Return the last number at which a test that holds at 0 holds, and the first that fails."""
    high = 1.0
    while holds(high):
        high *= 2
    while not holds(high / 2):
        high /= 2
    low = high / 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low, high
