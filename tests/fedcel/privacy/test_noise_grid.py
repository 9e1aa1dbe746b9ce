"""The grids are fine, and the noise on them allows for rounding."""

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcel.privacy.epsilon_range import LARGEST_GRID
from fedcel.privacy.noise_grid import choose_integer_grid, choose_opendp_grid


@settings(deadline=None, max_examples=200)
@given(st.floats(1e-3, LARGEST_GRID), st.floats(1e-6, 1e6), st.integers(1, 1000))
def test_the_scale_covers_rows_moved_by_rounding(epsilon: float, bound: float, values: int) -> None:
    """In exact numbers: all steps that two rows may differ by, over t, are at most epsilon."""
    power, t = choose_integer_grid(epsilon, bound, values)
    step = Fraction(2) ** power
    assert (Fraction(bound) / step + values - 1) / t <= Fraction(epsilon)
    assert t * step <= (Fraction(bound) + (values + 1) * step) / Fraction(epsilon) + step


@pytest.mark.parametrize(("scale", "sensitivity"), [(1.0, 2.0), (5.0, 1e-9), (1e300, 1e-300)])
def test_opendps_step_is_fine_against_scale_and_sensitivity(
    scale: float, sensitivity: float
) -> None:
    """2^-79 of the smaller at most, and never below what a double can be."""
    exponent = choose_opendp_grid(scale, sensitivity)
    smaller = Fraction(min(scale, sensitivity))
    assert Fraction(2) ** exponent <= max(smaller / 2**79, Fraction(2) ** -1074)
    assert math.ldexp(1.0, exponent) > 0
