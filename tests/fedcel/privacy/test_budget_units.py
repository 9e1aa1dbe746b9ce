"""One conversion of epsilon and delta, for budgets as for prices: the decimal that is printed."""

from decimal import Decimal
from fractions import Fraction
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcel.privacy.budget_units import (
    MICRO,
    to_atto_delta,
    to_granted_micro,
    to_micro_epsilon,
)
from fedcel.privacy.ledger import Ledger, Receipt
from tests.fedcel.privacy.ledger.charges import charge, pay


@pytest.mark.parametrize(
    ("number", "price", "grant"),
    [
        (0.1, 100_000, 100_000),
        (0.3, 300_000, 300_000),
        (4, 4_000_000, 4_000_000),
        (1.0000001, 1_000_001, 1_000_000),
        (np.float64(0.7), 700_000, 700_000),
        (np.float32(0.1), 100_000, 100_000),  # a little more than one tenth, and prints as it
        (np.float16(0.3), 300_000, 300_000),
        (np.int32(3), 3_000_000, 3_000_000),
        (Decimal("0.1"), 100_000, 100_000),
        (Fraction(1, 3), 333_334, 333_333),
        (4.6e12, 46 * 10**17, 46 * 10**17),
    ],
)
def test_a_price_and_a_budget_by_hand(number: float, price: int, grant: int) -> None:
    """Equal wherever a millionth can say the number; else a price is more, a budget less."""
    assert (to_micro_epsilon(number), to_granted_micro(number)) == (price, grant)


@given(st.floats(1e-6, 1e6))
def test_a_price_is_never_too_low(epsilon: float) -> None:
    """Against exact decimals: less than a millionth more than the number, a budget less."""
    exact = Fraction(repr(epsilon)) * MICRO
    assert exact <= to_micro_epsilon(epsilon) < exact + 1
    assert exact - 1 < to_granted_micro(epsilon) <= exact


@pytest.mark.parametrize("bad", [0, -0.0, -1, nan, inf, 1e300, 2**62, True, "4", None, 1j])
def test_what_is_no_epsilon_is_refused(bad: float) -> None:
    """With its value; a text is no number, however it reads."""
    for convert in (to_micro_epsilon, to_granted_micro):
        with pytest.raises(ValueError, match=r"epsilon is .*, must be "):
            convert(bad)
    with pytest.raises(ValueError, match="epsilon is 1e-07, must be at least 1e-06"):
        to_granted_micro(1e-7)
    assert to_micro_epsilon(1e-300) == 1


def test_deltas_are_counted_in_attos() -> None:
    """Finer ones are rounded up."""
    assert [to_atto_delta(delta) for delta in (0.001, 1e-18, 5e-324, 0.0)] == [10**15, 1, 1, 0]


def test_a_budget_of_1_pays_for_ten_answers_of_a_tenth(tmp_path: Path) -> None:
    """Nine by the double next to it; ten deltas of .001 are .01, the most there may be."""
    price = to_micro_epsilon(0.1)
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        ledger.grant("ann", to_granted_micro(1.0))
        charges = [charge(str(k), epsilon=price)._replace(delta=0.001) for k in range(10)]
        assert all(isinstance(reply, Receipt) for reply in pay(ledger, charges))
        balance = ledger.balance("ann")
        assert (balance.remaining, balance.delta) == (0, 0.01)
        ledger.grant("ann", to_granted_micro(0.1))
        assert isinstance(
            pay(ledger, [charge("11", epsilon=price)._replace(delta=0.0)])[0], Receipt
        )
