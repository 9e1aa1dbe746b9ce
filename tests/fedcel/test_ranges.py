"""Ranges of numbers, and how one outside is refused."""

from math import inf, nan

import pytest

from fedcel.ranges import FRACTION, POSITIVE, Range


@pytest.mark.parametrize(
    ("limits", "inside", "outside"),
    [
        (POSITIVE, [1e-300, 1.0, 1e300], [0.0, -1.0, inf, -inf, nan]),
        (FRACTION, [1e-300, 0.5], [0.0, 1.0, -0.5, 2.0, nan]),
    ],
)
def test_a_number_outside_is_refused(
    limits: Range, inside: list[float], outside: list[float]
) -> None:
    """With its name, its value and what is allowed."""
    for value in inside:
        limits.check("x", value)
    for value in outside:
        with pytest.raises(ValueError, match=f"x is {value}, must be {limits.words}"):
            limits.check("x", value)


@pytest.mark.parametrize("value", ["4", None, True, 1j, b"1"])
def test_what_is_no_number_is_refused(value: float) -> None:
    """A text, however it reads, as a number out of range is."""
    with pytest.raises(ValueError, match="epsilon is .*, must be a float, finite and above 0"):
        POSITIVE.check("epsilon", value)
