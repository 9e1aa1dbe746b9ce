"""The built-in strategy holds its contract, with each rule that combines deltas."""

from typing import Any

import pytest
from flwr.app import ArrayRecord, Message

from fedcel.errors import ContractError
from fedcel.settings import Scalar
from fedcel.testing import check_delta_strategy
from strategies import PosteriorStrategy


def scale(delta: ArrayRecord, factor: float) -> ArrayRecord:
    arrays = [(factor * array).astype(array.dtype) for array in delta.to_numpy_ndarrays()]
    return ArrayRecord(arrays)


class Backwards(PosteriorStrategy):
    """Goes where nobody wants to."""

    def step(self, delta: ArrayRecord) -> ArrayRecord:
        return super().step(scale(delta, -1.0))


class Forgetful(PosteriorStrategy):
    """Takes ever smaller steps, and counts them outside its state."""

    steps = 0

    def step(self, delta: ArrayRecord) -> ArrayRecord:
        self.steps += 1
        return super().step(scale(delta, 1 / self.steps))


class Trusting(PosteriorStrategy):
    """Believes any number of examples."""

    def fault(self, reply: Message) -> str | None:
        """Give all reasons but that one."""
        reason = super().fault(reply)
        return None if reason and "examples" in reason else reason


class Restless(PosteriorStrategy):
    """Trains the encoder after burn-in, too."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.device_size = 0


@pytest.mark.parametrize(
    "extra_settings",
    [
        {},
        {"strategy.momentum": 0.9, "strategy.gain": 0.5},
        {"strategy.aggregation": "geometric-median"},
    ],
    ids=["mean", "long memory", "geometric median"],
)
def test_the_strategy_holds_its_contract(extra_settings: dict[str, Scalar]) -> None:
    """By default, and with each option of the mean."""
    check_delta_strategy(PosteriorStrategy, extra_settings)


@pytest.mark.parametrize(
    ("strategy", "line"),
    [
        (Backwards, "must move the model along what the clients have in common"),
        (Forgetful, "lost in a resumed run"),
        (Trusting, "a reply with a false count must be left out"),
        (Restless, "the encoder must be frozen after burn-in"),
    ],
)
def test_a_line_of_the_contract_is_broken(strategy: type[PosteriorStrategy], line: str) -> None:
    with pytest.raises(ContractError, match=line):
        check_delta_strategy(strategy)
