"""A round of made-up clients, and the short form of the contract of strategies over deltas.

It needs Flower; runs import it only to check a strategy of a user's own.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedcel.errors import RoundError
from fedcel.federation import record_names
from fedcel.plugins import require

SHAPES = [(3, 2), (2,)]
CUT, SIZE = 6, 8  # encoder parameters, all parameters
EXAMPLES = {0: 10, 1: 20, 2: 30, 3: 40}
NODE = 100  # node NODE + k holds partition k


class StrategyCase(NamedTuple):
    """A strategy over deltas to hold to its contract.

    Attributes:
        build: Makes the strategy, of nets of `SHAPES`, with its four clients registered.
    """

    build: Callable[[], Any]


def _check_fault(case: StrategyCase) -> None:
    strategy = case.build()
    line = "`fault` must return a reason in words or None"
    with allow_messages():
        messages = ask_clients(strategy, 1)
        # As every round does between its messages and the replies.
        for message, delta in zip(messages, make_deltas(1), strict=True):
            client = message.metadata.dst_node_id - NODE
            reason = strategy.fault(make_reply(message, client, delta))
            is_reason = reason is None or (isinstance(reason, str) and reason)
            require(bool(is_reason), f"{line}; of a valid reply it returned {reason!r:.60}")
        failed = Message(Error(2, "out of memory"), reply_to=messages[0])
        reason = strategy.fault(failed)
        line = "`fault` must give a reason in words for a reply that is an error"
        is_reason = isinstance(reason, str) and bool(reason)
        require(is_reason, f"{line}, as super().fault does; it returned {reason!r:.60}")


def _check_step(case: StrategyCase) -> None:
    strategy = case.build()
    with allow_messages():
        messages = ask_clients(strategy, 1)
    mean = [np.mean(arrays, axis=0) for arrays in zip(*make_deltas(1), strict=True)]
    model = strategy.step(ArrayRecord([array.astype(np.float32) for array in mean]))
    line = "`step` must return the next model, an ArrayRecord of the delta's arrays"
    require(isinstance(model, ArrayRecord), f"{line}; it returned {type(model).__name__}")
    arrays = model.to_numpy_ndarrays()
    shapes = [tuple(array.shape) for array in arrays]
    require(shapes == SHAPES, f"{line}; of shapes {SHAPES} it made {shapes}")
    is_finite = all(bool(np.isfinite(array).all()) for array in arrays)
    require(is_finite, f"{line}; its values are not finite")
    require(len(messages) == len(EXAMPLES), "`configure_train` must ask all clients of a round")


def _check_round(case: StrategyCase) -> None:
    strategy = case.build()
    with allow_messages():
        replies = [
            make_reply(message, message.metadata.dst_node_id - NODE, delta)
            for message, delta in zip(ask_clients(strategy, 1), make_deltas(1), strict=True)
        ]
        try:
            answer = strategy.aggregate_train(1, replies)
        except RoundError:  # `fault` left out all of these clients, whom it may have reason to
            return
    line = "`aggregate_train` must return (arrays, metrics) of the next model, as super() does"
    is_pair = isinstance(answer, tuple) and len(answer) == 2
    require(is_pair, f"{line}; it returned {type(answer).__name__}")
    require(isinstance(answer[0], ArrayRecord), f"{line}; arrays were {type(answer[0]).__name__}")
    require(strategy.state.round == 1, f"{line}; it did not play the round")


STRATEGY_CHECKS: tuple[Callable[[StrategyCase], None], ...] = (
    _check_fault,
    _check_step,
    _check_round,
)
"""Each raises ContractError where a line of the contract does not hold."""


def register_clients(strategy: Any) -> Any:
    """Return a strategy whose four nodes are registered."""
    partitions = {NODE + k: k for k in EXAMPLES}
    strategy.registry = strategy.registry._replace(partitions=partitions, examples=dict(EXAMPLES))
    return strategy


def make_deltas(seed: int) -> list[Any]:
    """Return small valid deltas of each client, with most of their direction in common."""
    different, common = np.random.default_rng(seed), np.random.default_rng(0)
    arrays = [common.normal(size=shape) for shape in SHAPES]
    return [
        [(0.1 * (a + 0.3 * different.normal(size=a.shape))).astype(np.float32) for a in arrays]
        for _ in EXAMPLES
    ]


class ConnectedNodes:
    """A grid whose nodes are all connected."""

    def get_node_ids(self) -> list[int]:
        """Return the nodes."""
        return [NODE + k for k in EXAMPLES]


def ask_clients(strategy: Any, number: int) -> list[Message]:
    """Return the strategy's messages to all clients in a round."""
    parts = zip(torch.split(strategy.state.model, [CUT, SIZE - CUT]), SHAPES, strict=True)
    model = ArrayRecord([part.numpy().reshape(shape).copy() for part, shape in parts])
    return [*strategy.configure_train(number, model, ConfigRecord(), ConnectedNodes())]


@contextmanager
def allow_messages() -> Iterator[None]:
    """Let messages be made: Flower wants to know which task makes them."""
    names = ("_task_id", "_run_id", "_node_id")
    before = [getattr(TaskIdentity, name) for name in names]
    for name in names:
        setattr(TaskIdentity, name, 1)
    try:
        yield
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(TaskIdentity, name, value)


def make_reply(message: Message, client: int, delta: Any) -> Message:
    """Return a client's reply: `delta` are arrays, or a function that makes the reply."""
    if callable(delta):
        return cast(Message, delta(message, client))
    config: Any = message.content.config_records[record_names.CONFIG]
    metrics = MetricRecord(
        {
            record_names.EXAMPLES: EXAMPLES[client],
            record_names.PARTITION: client,
            record_names.ROUND: config[record_names.ROUND],
            "loss": 1.0,
        }
    )
    content = RecordDict({record_names.DELTA: ArrayRecord(delta), record_names.METRICS: metrics})
    return Message(content, reply_to=message)
