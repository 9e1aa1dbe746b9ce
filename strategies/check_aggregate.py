"""What a strategy makes of a round is a model, or the run fails by the strategy's name."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Strategy

from fedcel.errors import (
    FailedError,
    FedcelError,
    RoundError,
    describe_module_origin,
    describe_origin,
)
from fedcel.own_parts import blame_own_parts
from fedcel.plugins import PartName
from fedcel.settings import OWN_STRATEGY, Settings
from strategies.check_model import check_model
from strategies.posterior_strategy import PosteriorStrategy

LARGEST = 1e15
"""In an update: sums of such values, and of their squares, stay finite in single precision."""


def check_aggregates(strategy: Strategy, shapes: Sequence[tuple[int, ...]]) -> None:
    """Let a strategy's `aggregate_train` raise RoundError where it returns what is no model.

    A round of which none is made is `PosteriorStrategy`'s error at once; what it means under
    another strategy is decided by `StockRounds`.

    Args:
        strategy: The strategy; its method is replaced by one that is checked.
        shapes: The shapes of the model's arrays.
    """
    name = f"{type(strategy).__name__}.aggregate_train"
    aggregate = strategy.aggregate_train

    def aggregate_and_check(
        server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        begin = strategy.state.round if isinstance(strategy, PosteriorStrategy) else 0
        replies = list(replies)
        answer = aggregate(server_round, replies)
        _check_answer(name, answer, shapes, replies)
        if isinstance(strategy, PosteriorStrategy):
            if strategy.state.round != begin + 1:
                raise RoundError(
                    f"{name} did not play the round: call super().aggregate_train in it, or "
                    "override fault and step instead"
                )
            if answer[0] is None:
                raise RoundError(f"{name} returned no arrays though clients trained; {_ADVICE}")
        return answer

    strategy.aggregate_train = aggregate_and_check  # type: ignore[method-assign]


def _check_answer(
    name: str, answer: object, shapes: Sequence[tuple[int, ...]], replies: Iterable[Message]
) -> None:
    """Raise RoundError unless an answer is a model, or says that none was made.

    A model that is not finite is the strategy's fault only where the updates were, and far from
    the end of their numbers: else the training ran away.
    """
    if not isinstance(answer, tuple) or len(answer) != 2:
        kind = type(answer).__name__
        raise RoundError(f"{name} must return (arrays, metrics), returned {kind}; {_ADVICE}")
    if answer[0] is None:
        return
    model = check_model(name, answer[0], shapes, are_finite=False)
    is_finite = all(np.isfinite(array).all() for array in model.to_numpy_ndarrays())
    if not is_finite and _are_moderate(replies):
        check_model(name, model, shapes)


def _are_moderate(replies: Iterable[Message]) -> bool:
    """Say whether all arrays that clients sent are finite, and not so large that means are not."""
    return all(
        bool((np.abs(array) < LARGEST).all())  # False of NaN, too
        for reply in replies
        if not reply.has_error()
        for record in reply.content.array_records.values()
        for array in record.to_numpy_ndarrays()
    )


_ADVICE = "return what super().aggregate_train returns, or the next model and its metrics"


@contextmanager
def blame_strategy(settings: Settings) -> Iterator[None]:
    """Name the user's part, or the strategy, under which something unforeseen was raised.

    Args:
        settings: The run's settings.

    Yields:
        Nothing.

    Raises:
        FailedError: Instead of what is neither a FedcelError nor one of the system's.
    """
    part = PartName("strategy.name", settings.strategy.name, "StrategyContract")
    try:
        with blame_own_parts(settings):
            yield
    except (FedcelError, OSError):
        raise
    except Exception as error:
        if settings.strategy.name == OWN_STRATEGY:
            raise
        failure = part.describe_failure(error)
        if not describe_module_origin(error, part.ref.partition(":")[0]):
            failure += f"; raised in {describe_origin(error)}"
        raise FailedError(failure) from error
