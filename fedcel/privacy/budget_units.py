"""Units in which budgets are counted: whole numbers, so that sums are exact.

Epsilon is counted in millionths, delta in attos (1e-18). A float counts as the decimal that it
prints as: 0.1 is one tenth, for a budget as for a price, so that 1.0 pays for ten answers of 0.1.
What is finer than a unit is rounded up in a price and down in a budget: nothing is undercharged.
"""

import math
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from numbers import Real

from fedcel.errors import SettingsError

MICRO = 1_000_000
"""Micro-epsilons in one epsilon."""
MAX_MICRO = 2**62
"""No budget or price is as large: far from a database's largest integer, also after an addition."""
ATTO = 10**18
"""Atto-deltas in a delta of 1."""


def read_decimal(name: str, number: float | Decimal | Fraction) -> Fraction:
    """Return the decimal that a real number prints as, exactly; SettingsError on any other."""
    if isinstance(number, Real | Decimal) and not isinstance(number, bool):
        try:
            if isinstance(number, int | Fraction | Decimal):
                return Fraction(number)
            return Fraction(str(number))
        except (ValueError, OverflowError):  # NaN, infinity
            pass
    raise SettingsError(f"{name} is {number!r}, must be a finite number; give one such as 0.5")


def to_micro_epsilon(epsilon: float | Decimal | Fraction, name: str = "epsilon") -> int:
    """Convert the price of an answer to the ledger's unit.

    Args:
        epsilon: Privacy loss, in nats.
        name: Name of the value in a message.

    Returns:
        Millionths of it, rounded up.

    Raises:
        SettingsError: It is no number, 0 or less, or more than can be counted.
    """
    return _check_micro(name, epsilon, math.ceil(read_decimal(name, epsilon) * MICRO))


def to_granted_micro(budget: float | Decimal | Fraction, name: str = "epsilon") -> int:
    """Convert a budget to the ledger's unit.

    Args:
        budget: Epsilon that may be spent, in nats.
        name: Name of the value in a message.

    Returns:
        Millionths of it, rounded down: never more than was given.

    Raises:
        SettingsError: It is no number, less than a millionth, or more than can be counted.
    """
    return _check_micro(name, budget, math.floor(read_decimal(name, budget) * MICRO))


@lru_cache(maxsize=1024)
def to_atto_delta(delta: float) -> int:
    """Return a delta in attos, rounded up; SettingsError on what is no finite number."""
    return math.ceil(read_decimal("delta", delta) * ATTO)


def _check_micro(name: str, value: object, micro: int) -> int:
    """Return an amount that can be counted; SettingsError on another."""
    if not 0 < micro < MAX_MICRO:
        raise SettingsError(f"{name} is {value}, must be at least 1e-06 and below 4.6e12")
    return micro
