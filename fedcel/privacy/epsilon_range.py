"""Epsilons at which each mechanism can answer; plain numbers, so that settings check the same."""

import math

from fedcel.ranges import POSITIVE, Range

SMALLEST_RESPONSE = 1e-9
"""Least epsilon of label-only answers: below, too few doubles lie between two labels' chances."""
LARGEST_GRID = 2.0**20
"""Largest epsilon of discrete Laplace noise: rows have at most 2^51 steps, exact in doubles."""

RANGES = {
    "label-only": Range(
        f"finite and {SMALLEST_RESPONSE} or more for 'label-only'",
        lambda epsilon: SMALLEST_RESPONSE <= epsilon < math.inf,
    ),
    "discrete-laplace": Range(
        f"above 0 and at most {LARGEST_GRID:g} for 'discrete-laplace'",
        lambda epsilon: 0 < epsilon <= LARGEST_GRID,
    ),
}


def check_epsilon(epsilon: float, mechanism: str = "laplace", name: str = "epsilon") -> None:
    """Refuse an epsilon, in nats, that a mechanism cannot keep: ValueError, by the value's name."""
    RANGES.get(mechanism, POSITIVE).check(name, epsilon)
