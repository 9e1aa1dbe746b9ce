"""The grids that discrete noise lies on: a power of 2 each, so that rounding to it is exact."""

import math
from fractions import Fraction

OPENDP_BITS = 80
"""OpenDP's step is 2^-80 of the noise's scale, or of the sensitivity where that is smaller."""
SMALLEST_EXPONENT = -1074
"""The smallest exponent of a double."""
INTEGER_BITS = 30
"""In steps of the other grid, the scale is about 2^30: whole numbers of 64 bits hold the noise."""


def choose_opendp_grid(scale: float, sensitivity: float) -> int:
    """Return the exponent of OpenDP's step, which is fine against the scale and the sensitivity."""
    return max(math.frexp(min(scale, sensitivity))[1] - OPENDP_BITS, SMALLEST_EXPONENT)


def choose_integer_grid(epsilon: float, sensitivity: float, values: int) -> tuple[int, int]:
    """Return the exponent of the step, and the noise's scale t in steps.

    A row of `values` numbers moves by at most floor(sensitivity / step) + values steps, and t is
    that over epsilon, rounded up: whole numbers, nothing is lost to rounding. ValueError where
    epsilon and sensitivity are too far apart.
    """
    scale = sensitivity / epsilon
    exponent = math.frexp(scale)[1] - INTEGER_BITS
    if not (math.isfinite(scale) and -1000 < exponent < 900):
        raise ValueError(
            f"epsilon is {epsilon} at sensitivity {sensitivity}, too far apart for any grid; try "
            "an epsilon from .1 to 10"
        )
    steps = math.floor(Fraction(sensitivity) / Fraction(2) ** exponent) + values
    return exponent, math.ceil(steps / Fraction(epsilon))
