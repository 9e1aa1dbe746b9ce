"""What every strategy over deltas must hold; the one suite that needs Flower."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, cast

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy
from flwr.supercore.task_identity import TaskIdentity

from fedcel.errors import RoundError
from fedcel.federation import ServerState, init_server_state, record_names
from fedcel.nets import to_vector
from fedcel.settings import Settings, parse_settings

SHAPES = [(3, 2), (2,)]
CUT, SIZE = 6, 8  # encoder parameters, all parameters
EXAMPLES = {0: 10, 1: 20, 2: 30, 3: 40}
NODE = 100  # node NODE + k holds partition k


class StrategyContract:
    """Name your subclass `TestMine`, define `build`; pytest runs the rest.

    For subclasses of `strategies.PosteriorStrategy`: a stock strategy of Flower averages weights
    and ends the run on a bad reply. `raw` are settings beyond temperature 0.
    """

    raw: ClassVar[dict[str, Any]] = {}

    def build(
        self, settings: Settings, state: ServerState, shapes: list[tuple[int, ...]], cut: int
    ) -> Strategy:
        """Return your strategy, as the ServerApp makes it."""
        raise NotImplementedError

    def settings(self) -> Settings:
        """Return the settings of ten rounds, burn-in ends after five."""
        base = {"clients": len(EXAMPLES), "rounds": 10, "temperature": 0.0, "chain.burn-in": 0.5}
        return parse_settings(base | self.raw)

    def met(self, state: ServerState | None = None) -> Any:
        """Return a strategy that has met its four nodes."""
        begun = state or init_server_state(torch.linspace(-1, 1, SIZE))
        found: Any = self.build(self.settings(), begun, SHAPES, CUT)
        partitions = {NODE + k: k for k in EXAMPLES}
        found.registry = found.registry._replace(partitions=partitions, examples=dict(EXAMPLES))
        return found

    def round(
        self, strategy: Any, deltas: Sequence[Any], order: Sequence[int] = ()
    ) -> torch.Tensor:
        """Return the model after a round; `deltas[k]` is client k's arrays, or its whole reply."""
        with allow_messages():
            number = strategy.state.round + 1 - strategy.first_round
            model = ArrayRecord(model_arrays(strategy.state.model))
            asked = [*strategy.configure_train(number, model, ConfigRecord(), cast(Any, Nodes()))]
            replies = [
                make_reply(message, k, deltas[k])
                for message in asked
                for k in [message.metadata.dst_node_id - NODE]
            ]
            arranged = [replies[i] for i in order] if order else replies
            after, _ = strategy.aggregate_train(number, arranged)
        vector = to_vector(after.to_numpy_ndarrays())
        assert torch.equal(vector, strategy.state.model)
        return vector

    def deltas(self, seed: int) -> list[Any]:
        """Return small sound deltas with most of their direction in common, in every round."""
        draw, same = np.random.default_rng(seed), np.random.default_rng(0)
        common = [same.normal(size=s) for s in SHAPES]
        return [
            [(0.1 * (c + 0.3 * draw.normal(size=c.shape))).astype(np.float32) for c in common]
            for _ in EXAMPLES
        ]

    def test_each_client_learns_what_it_counts(self) -> None:
        """Every message has the round, the client's weight, the sum of examples, the model."""
        strategy = self.met()
        with allow_messages():
            model = ArrayRecord(model_arrays(strategy.state.model))
            asked = [*strategy.configure_train(1, model, ConfigRecord(), cast(Any, Nodes()))]
        said = [message.content.config_records[record_names.CONFIG] for message in asked]
        total = sum(EXAMPLES.values())
        assert {int(cast(int, one[record_names.ROUND])) for one in said} == {1}
        assert {int(cast(int, one[record_names.TOTAL])) for one in said} == {total}
        shares = [float(cast(float, one[record_names.WEIGHT])) for one in said]
        np.testing.assert_allclose(shares, [n / total for n in EXAMPLES.values()], rtol=1e-6)
        for message in asked:
            sent = message.content.array_records[record_names.ARRAYS].to_numpy_ndarrays()
            assert torch.equal(to_vector(sent), strategy.state.model)

    def test_a_sound_round_moves_the_model(self) -> None:
        """Along what the clients have in common, finite, one round on, everyone kept."""
        strategy = self.met()
        before, sent = strategy.state.model.clone(), self.deltas(1)
        moved = self.round(strategy, sent) - before
        mean = torch.stack([to_vector(d) for d in sent]).mean(0)
        assert moved.isfinite().all()
        assert torch.cosine_similarity(moved, mean, 0) > 0.5
        assert strategy.state.round == 1
        assert (strategy.report.clients, strategy.rejected) == ([*EXAMPLES], [])

    def test_the_order_of_arrival_changes_no_bit(self) -> None:
        """Replies come as they come."""
        one, two = self.met(), self.met()
        for seed in (1, 2):
            first = self.round(one, self.deltas(seed))
            assert torch.equal(self.round(two, self.deltas(seed), (2, 0, 3, 1)), first)

    @pytest.mark.parametrize("kind", ["nan", "shape", "dtype", "count", "error", "record"])
    def test_a_bad_reply_is_left_out(self, kind: str) -> None:
        """With its reason and its client, and the round goes on with the others."""
        strategy, sent = self.met(), self.deltas(1)
        before = strategy.state.model.clone()
        sent[2] = make_bad_content(kind, sent[2])
        moved = self.round(strategy, sent) - before
        assert moved.isfinite().all()
        assert moved.any()
        assert 2 not in strategy.report.clients
        (rejection,) = [r for r in strategy.rejected if r.client == 2]
        assert rejection.reason

    def test_no_sound_reply_ends_the_round_by_name(self) -> None:
        """RoundError, and the state is that of before."""
        strategy = self.met()
        before = strategy.state
        sent = [make_bad_content("nan", one) for one in self.deltas(1)]
        with pytest.raises(RoundError):
            self.round(strategy, sent)
        assert strategy.state.round == before.round
        assert torch.equal(strategy.state.model, before.model)

    def test_the_encoder_stands_still_after_burn_in(self) -> None:
        """Round six on: one message serves all heads because the encoder is equal to the bit."""
        strategy = self.met()
        for seed in range(5):
            last = self.round(strategy, self.deltas(seed)).clone()
        for seed in (5, 6):
            after = self.round(strategy, self.deltas(seed))
            assert torch.equal(after[:CUT], last[:CUT])
            assert not torch.equal(after[CUT:], last[CUT:])

    def test_a_resumed_run_goes_on_to_the_same_bits(self) -> None:
        """Whatever the strategy remembers beyond its `state` would be lost."""
        whole, part = self.met(), self.met()
        for seed in range(4):
            first = self.round(whole, self.deltas(seed))
            second = self.round(part, self.deltas(seed))
            part = self.met(part.state)
            assert torch.equal(first, second)


class Nodes:
    """A grid whose nodes are all connected; nobody is asked anything."""

    def get_node_ids(self) -> list[int]:
        """Return the nodes."""
        return [NODE + k for k in EXAMPLES]


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


def model_arrays(vector: torch.Tensor) -> list[Any]:
    """Return a model's arrays."""
    parts = zip(torch.split(vector, [CUT, SIZE - CUT]), SHAPES, strict=True)
    return [part.numpy().reshape(shape).copy() for part, shape in parts]


def make_reply(message: Message, client: int, sent: Any) -> Message:
    """Return a client's reply: `sent` are arrays, or a function of the message."""
    if callable(sent):
        return cast(Message, sent(message, client))
    asked = message.content.config_records[record_names.CONFIG]
    told = {record_names.EXAMPLES: EXAMPLES[client], record_names.PARTITION: client, "loss": 1.0}
    metrics = MetricRecord({**told, record_names.ROUND: int(cast(int, asked[record_names.ROUND]))})
    content = RecordDict({record_names.DELTA: ArrayRecord(sent), record_names.METRICS: metrics})
    return Message(content, reply_to=message)


def make_bad_content(kind: str, delta: list[Any]) -> Any:
    """Return what a faulty client sends in the place of its delta."""

    def failed(message: Message, client: int) -> Message:
        return Message(Error(2, "out of memory"), reply_to=message)

    def miscounted(message: Message, client: int) -> Message:
        found = make_reply(message, client, delta)
        found.content.metric_records[record_names.METRICS][record_names.EXAMPLES] = 10**6
        return found

    def empty(message: Message, client: int) -> Message:
        return Message(RecordDict(), reply_to=message)

    hole = [one.copy() for one in delta]
    hole[0].flat[0] = np.nan
    kinds: dict[str, Any] = {
        "nan": hole,
        "shape": [one.T for one in delta],
        "dtype": [one.astype(np.float64) for one in delta],
        "count": miscounted,
        "error": failed,
        "record": empty,
    }
    return kinds[kind]
