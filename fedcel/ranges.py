"""Ranges of numbers, in the same words for settings and for arguments of functions."""

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import NamedTuple


class Range(NamedTuple):
    """Numbers that are allowed."""

    words: str
    holds: Callable[[float], bool]

    def check(self, name: str, value: float) -> None:
        """Refuse a number outside of the range: ValueError."""
        if not isinstance(value, Real) or isinstance(value, bool):
            raise ValueError(f"{name} is {value!r}, must be a float, {self.words}")
        if not self.holds(float(value)):
            raise ValueError(f"{name} is {value}, must be {self.words}")


POSITIVE = Range("finite and above 0", lambda value: 0 < value < math.inf)
NON_NEGATIVE = Range("finite, 0 or more", lambda value: 0 <= value < math.inf)
CHANCE = Range("at least 0 and below 1", lambda value: 0 <= value < 1)
SHARE = Range("in [0, 1]: a share, not percent", lambda value: 0 <= value <= 1)
FRACTION = Range("above 0 and below 1", lambda value: 0 < value < 1)


def check_whole(name: str, value: int, least: int | None = None, remedy: str = "") -> None:
    """Refuse what is no whole number, or below the least: ValueError."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole or (least is not None and value < least):
        limit = "" if least is None else f"{least} or more, "
        raise ValueError(f"{name} is {value!r}, must be {limit}a whole number{remedy}")
