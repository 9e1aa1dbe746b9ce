"""What a number may be, in the same words wherever it is given: in settings or to a function."""

import math
from collections.abc import Callable
from numbers import Real
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
FRACTION = Range("above 0 and below 1", lambda value: 0 < value < 1)
