"""What a strategy makes of a round is a model, or an error by the strategy's name."""

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message
from flwr.serverapp.strategy import FedAvg

from fedcel.errors import FailedError, RoundError
from fedcel.federation import record_names
from fedcel.settings import parse_settings
from strategies import PosteriorStrategy
from strategies.check_aggregate import blame_strategy, check_aggregates
from tests.strategies import grid
from tests.strategies.grid import SHAPES, reply

MODEL = [np.zeros(shape, np.float32) for shape in SHAPES]


class Answering(FedAvg):
    """Returns what it was made with."""

    def __init__(self, answer: Any) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.answer = answer

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        """Return the answer."""
        return self.answer


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, r"must return \(arrays, metrics\), returned NoneType"),
        ((MODEL, None), "must return an ArrayRecord, returned list"),
        ((ArrayRecord(MODEL[:1]), None), "the 2 arrays .*2x3, 3; it returned 1, of shapes 2x3"),
        ((ArrayRecord([a.T for a in MODEL]), None), "it returned 2, of shapes 3x2, 3"),
    ],
)
def test_a_round_that_gives_no_model_is_an_error(answer: Any, words: str) -> None:
    """By the name of the class; Flower takes nothing for a round without replies."""
    strategy = Answering(answer)
    check_aggregates(strategy, SHAPES)
    with pytest.raises(RoundError, match=f"Answering.aggregate_train .*{words}"):
        strategy.aggregate_train(1, [reply(0)])


def test_what_flower_expects_passes() -> None:
    """A model; and nothing, which `StockRounds` judges."""
    strategy = Answering((ArrayRecord(MODEL), None))
    check_aggregates(strategy, SHAPES)
    assert strategy.aggregate_train(1, [reply(0)]) == strategy.answer
    strategy.answer = (None, None)
    assert strategy.aggregate_train(1, []) == (None, None)


def test_a_model_that_is_not_finite_is_the_strategys_where_the_updates_were() -> None:
    """Where a client's was not, or is at the end of its numbers, the training ran away instead."""
    strategy = Answering((ArrayRecord([a + np.nan for a in MODEL]), None))
    check_aggregates(strategy, SHAPES)
    words = "Answering.aggregate_train returned a model that is not finite, of updates that are"
    with pytest.raises(RoundError, match=words):
        strategy.aggregate_train(1, [reply(0), reply(1)])
    for value in (np.nan, np.inf, 1e30):
        wild = reply(1)
        arrays = ArrayRecord([np.full(shape, value, np.float32) for shape in SHAPES])
        wild.content[record_names.DELTA] = arrays
        assert strategy.aggregate_train(1, [reply(0), wild]) == strategy.answer


class Idle(PosteriorStrategy):
    """Returns the model without the round."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        """Play nothing."""
        return ArrayRecord(MODEL), None


def test_a_strategy_over_deltas_plays_its_round() -> None:
    """A model of one's own that the server's state knows nothing of is none."""
    strategy = grid.strategy(Idle)
    check_aggregates(strategy, SHAPES)
    with pytest.raises(RoundError, match="Idle.aggregate_train did not play the round: call"):
        strategy.aggregate_train(1, [reply(0)])


class Forgetful(PosteriorStrategy):
    """Plays the round and keeps the model for itself."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        """Return nothing."""
        super().aggregate_train(server_round, replies)
        return None, None


def test_a_strategy_over_deltas_returns_its_model() -> None:
    """Flower would go on with the model of before."""
    strategy = grid.strategy(Forgetful)
    check_aggregates(strategy, SHAPES)
    with pytest.raises(RoundError, match="Forgetful.aggregate_train returned no arrays"):
        strategy.aggregate_train(1, [reply(k) for k in range(3)])


class Stepping(PosteriorStrategy):
    """Steps and judges as the test says."""

    answer: Any = None
    judgement: Any = None

    def step(self, delta: ArrayRecord) -> ArrayRecord:
        """Return the answer."""
        super().step(delta)
        answer: ArrayRecord = self.answer
        return answer

    def fault(self, reply: Message) -> str | None:
        """Return the judgement."""
        if isinstance(self.judgement, Exception):
            raise self.judgement
        judgement: str | None = self.judgement
        return judgement


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "must return an ArrayRecord, returned NoneType"),
        (ArrayRecord(MODEL[:1]), "the 2 arrays of the model, .* it returned 1"),
        (ArrayRecord([a + np.nan for a in MODEL]), "a model that is not finite"),
    ],
)
def test_a_step_that_gives_no_model_is_an_error(answer: Any, words: str) -> None:
    """By the name of the class, and the state stays as it was before the answer."""
    strategy = grid.strategy(Stepping)
    strategy.answer = answer
    with pytest.raises(RoundError, match=f"Stepping.step .*{words}"):
        strategy.aggregate_train(1, [reply(k) for k in range(3)])
    assert strategy.report.clients == []


@pytest.mark.parametrize("judgement", [True, False, "", 3])
def test_a_fault_that_is_no_reason_is_an_error(judgement: Any) -> None:
    """It says why, or None."""
    strategy = grid.strategy(Stepping)
    strategy.judgement = judgement
    with pytest.raises(RoundError, match="Stepping.fault returned .*, must return a reason"):
        strategy.aggregate_train(1, [reply(k) for k in range(3)])


def test_a_fault_that_fails_is_the_reason() -> None:
    """A reply may be hostile: it is left out, by the line of the user's that failed at it."""
    strategy = grid.strategy(Stepping)
    strategy.judgement = ZeroDivisionError("no examples")
    with pytest.raises(RoundError, match=r"Stepping.fault failed at it: ZeroDivisionError: no exa"):
        strategy.aggregate_train(1, [reply(k) for k in range(3)])
    assert "test_check_aggregate.py, line" in strategy.rejected[0].reason


def test_what_a_strategy_raises_names_it() -> None:
    """FailedError with the user's line; our own strategy's errors stay as they are."""
    own = parse_settings({"strategy.name": f"{__name__}:Stepping"})
    with (
        pytest.raises(FailedError, match=r"Stepping' failed: KeyError: 'x' \(.*aggregate.py, line"),
        blame_strategy(own),
    ):
        raise KeyError("x")
    with pytest.raises(KeyError), blame_strategy(parse_settings({})):
        raise KeyError("x")
