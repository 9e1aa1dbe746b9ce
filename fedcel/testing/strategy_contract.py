"""Contract of strategies over deltas, and the clients of a round that it makes up.

It needs Flower; runs import it only to check a strategy of a user's own.
"""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedcel.errors import RoundError
from fedcel.federation import ServerState, init_server_state, record_names
from fedcel.flower_messages import allow_messages
from fedcel.nets import to_arrays, to_vector
from fedcel.plugins import hold_contract, require
from fedcel.settings import Scalar, Settings, parse_settings

SHAPES = [(3, 2), (2,)]
CUT, SIZE = 6, 8  # encoder parameters, all parameters
EXAMPLES = {0: 10, 1: 20, 2: 30, 3: 40}
_NODE = 100  # node _NODE + k holds partition k
_BAD = 2  # the client whose reply is bad
Spoil = Callable[[Message, list[Any]], Message]
"""Makes the bad client's reply of its message and a valid delta."""


class StrategyCase(NamedTuple):
    """Strategies of a state, for nets of `SHAPES` and `EXAMPLES` in ten rounds, half of burn-in."""

    build: Callable[[ServerState], Any]

    def make(self, state: ServerState | None = None) -> Any:
        """Make the strategy, its nodes registered and connected."""
        strategy = self.build(state or init_server_state(torch.linspace(-1, 1, SIZE)))
        partitions = {_NODE + k: k for k in EXAMPLES}
        registry = strategy.registry._replace(partitions=partitions, examples=dict(EXAMPLES))
        strategy.registry = registry
        return strategy


def _make_deltas(seed: int) -> list[list[Any]]:
    """Return a small valid delta of each client, with most of their direction in common."""
    different, common = np.random.default_rng(seed), np.random.default_rng(0)
    arrays = [common.normal(size=shape) for shape in SHAPES]
    return [
        [(0.1 * (a + 0.3 * different.normal(size=a.shape))).astype(np.float32) for a in arrays]
        for _ in EXAMPLES
    ]


def _ask(strategy: Any) -> list[Message]:
    """Return the messages of the next round, by client."""
    model = ArrayRecord(to_arrays(strategy.state.model, SHAPES))
    grid = SimpleNamespace(get_node_ids=lambda: [_NODE + k for k in EXAMPLES])
    number = strategy.state.round + 1 - strategy.first_round
    return [*strategy.configure_train(number, model, ConfigRecord(), grid)]


def _reply(message: Message, delta: Any, **claims: int) -> Message:
    """Return a client's reply, with false claims where some are given."""
    config: Any = message.content.config_records[record_names.CONFIG]
    client = message.metadata.dst_node_id - _NODE
    metrics = {
        record_names.EXAMPLES: EXAMPLES[client],
        record_names.PARTITION: client,
        record_names.ROUND: config[record_names.ROUND],
        "loss": 1.0,
    }
    content = RecordDict({"delta": ArrayRecord(delta), "metrics": MetricRecord(metrics | claims)})
    return Message(content, reply_to=message)


def _play(
    strategy: Any, seed: int, order: Sequence[int] = (0, 1, 2, 3), spoil: Spoil = _reply
) -> torch.Tensor:
    """Play a round, in which the bad client's reply is spoilt; return the model after it."""
    with allow_messages():
        number = strategy.state.round + 1 - strategy.first_round
        replies = [
            (spoil if k == _BAD else _reply)(message, delta)
            for k, message, delta in zip(EXAMPLES, _ask(strategy), _make_deltas(seed), strict=True)
        ]
        answer = strategy.aggregate_train(number, [replies[k] for k in order])
    is_pair = isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], ArrayRecord)
    line = "`aggregate_train` must return (arrays, metrics) of the next model, as super() does"
    require(is_pair, f"{line}; it returned {answer!r:.60}")
    model = to_vector(answer[0].to_numpy_ndarrays())
    require(torch.equal(model, strategy.state.model), f"{line}; its `state` has another model")
    return model.clone()


def _check_fault(case: StrategyCase) -> None:
    strategy = case.make()
    with allow_messages():
        messages = _ask(strategy)
        for message, delta in zip(messages, _make_deltas(1), strict=True):
            strategy.fault(_reply(message, delta))  # in a round, its errors are reasons
        reason = strategy.fault(Message(Error(2, "out of memory"), reply_to=messages[0]))
    line = "`fault` must give a reason in words for a reply that is an error, as super().fault does"
    require(isinstance(reason, str) and bool(reason), f"{line}; it returned {reason!r:.60}")


def _check_round(case: StrategyCase) -> None:
    strategy = case.make()
    try:
        _play(strategy, 1)
    except RoundError as error:  # `fault` may have reason to leave out all of these clients
        require(len(strategy.rejected) == len(EXAMPLES), str(error))
    else:
        require(strategy.state.round == 1, "`aggregate_train` must play the round")


def _check_messages(case: StrategyCase) -> None:
    strategy, total = case.make(), sum(EXAMPLES.values())
    with allow_messages():
        messages = _ask(strategy)
    for message, examples in zip(messages, EXAMPLES.values(), strict=True):
        config: Any = message.content.config_records[record_names.CONFIG]
        arrays = message.content.array_records[record_names.ARRAYS].to_numpy_ndarrays()
        numbers = config[record_names.ROUND], config[record_names.TOTAL]
        is_weight = abs(config[record_names.WEIGHT] - examples / total) < 1e-6
        is_told = is_weight and numbers == (1, total)
        require(is_told, "each message must tell the round, the client's weight and all examples")
        is_model = torch.equal(to_vector(arrays), strategy.state.model)
        require(is_model, "each message must bring the model")


def _check_move(case: StrategyCase) -> None:
    strategy = case.make()
    move = _play(strategy, 1) - case.make().state.model
    mean = torch.stack([to_vector(delta) for delta in _make_deltas(1)]).mean(0)
    is_along = bool(move.isfinite().all() and torch.cosine_similarity(move, mean, 0) > 0.5)
    require(is_along, "a valid round must move the model along what the clients have in common")
    used = strategy.report.clients, strategy.rejected
    require(used == ([*EXAMPLES], []), "a valid round must leave out nobody")


def _check_order(case: StrategyCase) -> None:
    ordered, shuffled = case.make(), case.make()
    for seed in (1, 2):
        is_equal = torch.equal(_play(ordered, seed), _play(shuffled, seed, (2, 0, 3, 1)))
        require(is_equal, "the order in which replies arrive must not change a bit")


_SPOILT: dict[str, Spoil] = {
    "NaN": lambda m, delta: _reply(m, [np.full_like(array, np.nan) for array in delta]),
    "other shapes": lambda m, delta: _reply(m, [array.T for array in delta]),
    "double precision": lambda m, delta: _reply(m, [a.astype(np.float64) for a in delta]),
    "a false count": lambda m, delta: _reply(m, delta, **{record_names.EXAMPLES: 10**6}),
    "an error": lambda m, delta: Message(Error(2, "out of memory"), reply_to=m),
    "no record": lambda m, delta: Message(RecordDict(), reply_to=m),
}


def _check_bad_replies(case: StrategyCase) -> None:
    for kind, spoil in _SPOILT.items():
        strategy = case.make()
        move = _play(strategy, 1, spoil=spoil) - case.make().state.model
        reasons = [r.reason for r in strategy.rejected if r.client == _BAD]
        is_left_out = _BAD not in strategy.report.clients and len(reasons) == 1 and all(reasons)
        line = f"a reply with {kind} must be left out with a reason, and the round go on"
        require(is_left_out and bool(move.isfinite().all() and move.any()), line)


def _check_no_replies(case: StrategyCase) -> None:
    strategy, is_refused = case.make(), False
    try:
        _play(strategy, 1, (_BAD,), _SPOILT["NaN"])
    except RoundError:
        is_refused = torch.equal(strategy.state.model, case.make().state.model)
    line = "a round without a valid reply must raise RoundError and leave the state as it was"
    require(is_refused and strategy.state.round == 0, line)


def _check_freeze(case: StrategyCase) -> None:
    strategy = case.make()
    models = [_play(strategy, seed) for seed in range(7)]  # burn-in ends with the fifth
    for model in models[5:]:
        is_moved = model != models[4]
        require(not is_moved[:CUT].any(), "the encoder must be frozen after burn-in, to the bit")
        require(bool(is_moved[CUT:].any()), "the head must be trained on after burn-in")


def _check_resume(case: StrategyCase) -> None:
    whole, resumed = case.make(), case.make()
    for seed in range(4):
        is_equal = torch.equal(_play(whole, seed), _play(resumed, seed))
        require(is_equal, "what a strategy remembers beyond its `state` is lost in a resumed run")
        resumed = case.make(resumed.state)


STRATEGY_CHECKS = (_check_fault, _check_round)
"""Of every run; each raises ContractError where a line of the contract does not hold."""
STRATEGY_TESTS = (
    *STRATEGY_CHECKS,
    *(_check_messages, _check_move, _check_order, _check_bad_replies, _check_no_replies),
    *(_check_freeze, _check_resume),
)
"""All lines of the contract, in tests."""


def check_delta_strategy(
    build: Callable[[Settings, ServerState, list[tuple[int, ...]], int], Any],
    extra_settings: Mapping[str, Scalar] | None = None,
) -> None:
    """Hold a subclass of `strategies.PosteriorStrategy` to its contract.

    A stock strategy of Flower cannot pass: it averages weights and ends the run on a bad reply.

    Args:
        build: Makes your strategy as the ServerApp does, of the run's settings, the server's state
            with the model that training starts from, the shapes of the model's arrays, and the
            number of the encoder's parameters.
        extra_settings: Settings beyond temperature 0, as flat keys.
    """
    base = {"clients": len(EXAMPLES), "rounds": 10, "temperature": 0.0, "chain.burn-in": 0.5}
    settings = parse_settings({**base, **(extra_settings or {})})
    hold_contract(STRATEGY_TESTS, StrategyCase(lambda state: build(settings, state, SHAPES, CUT)))
