"""The built-in strategy holds its contract, with each rule that combines deltas."""

import pytest

from fedcel.settings import Scalar
from fedcel.testing import check_delta_strategy
from strategies import PosteriorStrategy


@pytest.mark.parametrize(
    "extra_settings",
    [
        {},
        {"strategy.momentum": 0.9, "strategy.gain": 0.5, "strategy.max-norm": 10.0},
        {"strategy.aggregation": "geometric-median"},
    ],
    ids=["mean", "long memory and limit on norms", "geometric median"],
)
def test_the_strategy_holds_its_contract(extra_settings: dict[str, Scalar]) -> None:
    """By default, and with each option of the mean."""
    check_delta_strategy(PosteriorStrategy, extra_settings)
