"""What a strategy makes of a round is a model, or an error by the strategy's name."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message

from fedcel.errors import FailedError, RoundError
from fedcel.runs import ServerRun
from fedcel.settings import parse_settings
from strategies import PosteriorStrategy
from strategies.check_strategy import blame_strategy
from strategies.server_app import RoundObserver
from tests.strategies import grid
from tests.strategies.grid import SHAPES, reply

MODEL = [np.zeros(shape, np.float32) for shape in SHAPES]


class Idle(PosteriorStrategy):
    """Returns the model without the round."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        """Play nothing."""
        return ArrayRecord(MODEL), None


def conclude(strategy: PosteriorStrategy) -> None:
    """Let a strategy aggregate a round, and the server conclude it."""
    run = cast(ServerRun, SimpleNamespace(state=strategy.state, has_converged=False))
    observer = RoundObserver(strategy, run)
    arrays, _ = strategy.aggregate_train(1, [reply(k) for k in range(3)])
    observer.conclude_round(1, arrays or ArrayRecord(MODEL))  # Flower goes on with the last


class Forgetful(PosteriorStrategy):
    """Plays the round and keeps the model for itself."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        super().aggregate_train(server_round, replies)
        return None, None


@pytest.mark.parametrize("kind", [Idle, Forgetful])
def test_a_strategy_over_deltas_plays_its_round_and_returns_its_model(
    kind: type[PosteriorStrategy],
) -> None:
    """A model of one's own that the server's state knows nothing of is none."""
    words = f"{kind.__name__}.aggregate_train did not play the round, or returned another model"
    with pytest.raises(RoundError, match=words):
        conclude(grid.strategy(kind))


class Stepping(PosteriorStrategy):
    """Steps and judges as the test says."""

    answer: Any = None
    judgement: Any = None

    def step(self, delta: ArrayRecord) -> ArrayRecord:
        super().step(delta)
        answer: ArrayRecord = self.answer
        return answer

    def fault(self, reply: Message) -> str | None:
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
    assert not strategy.report.clients


@pytest.mark.parametrize("judgement", [True, False, "", 3])
def test_a_fault_that_is_no_reason_is_an_error(judgement: Any) -> None:
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
    assert "test_strategy_results.py, line" in strategy.rejected[0].reason


def test_what_a_strategy_raises_names_it() -> None:
    """FailedError with the user's line; our own strategy's errors stay as they are."""
    own = parse_settings({"strategy.name": f"{__name__}:Stepping"})
    with (
        pytest.raises(FailedError, match=r"Stepping' failed: KeyError: 'x' \(.*results.py, line"),
        blame_strategy(own),
    ):
        raise KeyError("x")
    with pytest.raises(KeyError), blame_strategy(parse_settings({})):
        raise KeyError("x")
