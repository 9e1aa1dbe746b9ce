"""Ranges of numbers, and how one outside is refused."""

import re
from math import inf, nan

import numpy as np
import pytest

from fedcel.ranges import CHANCE, FRACTION, POSITIVE, SHARE, Range, check_whole


@pytest.mark.parametrize(
    ("limits", "inside", "outside"),
    [
        (POSITIVE, [1e-300, 1.0, 1e300], [0.0, -1.0, inf, -inf, nan]),
        (CHANCE, [0.0, 0.5], [1.0, -0.5, nan]),
        (SHARE, [0.0, 1.0], [-0.5, 1.5, nan]),
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
        with pytest.raises(ValueError, match=re.escape(f"x is {value}, must be {limits.words}")):
            limits.check("x", value)


@pytest.mark.parametrize("value", ["4", None, True, 1j, b"1"])
def test_what_is_no_number_is_refused(value: float) -> None:
    """A text, however it reads, as a number out of range is."""
    with pytest.raises(ValueError, match="epsilon is .*, must be a float, finite and above 0"):
        POSITIVE.check("epsilon", value)


@pytest.mark.parametrize("value", ["4", None, True, 2.0, 1])
def test_what_is_no_whole_number_is_refused(value: int) -> None:
    """A float, too, however whole; and a number below the least."""
    check_whole("x", np.int64(2), 2)
    check_whole("x", -1)
    with pytest.raises(ValueError, match=f"x is {value!r}, must be 2 or more, a whole number; ok"):
        check_whole("x", value, 2, "; ok")
