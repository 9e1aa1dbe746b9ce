"""What every strategy over deltas must hold; the one suite that needs Flower."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from flwr.app import Error, Message, RecordDict
from flwr.serverapp.strategy import Strategy

from fedcel.errors import RoundError
from fedcel.federation import ServerState, init_server_state, record_names
from fedcel.nets import to_vector
from fedcel.settings import Settings, parse_settings
from fedcel.testing.check_names import name_check
from fedcel.testing.made_up_round import (
    CUT,
    EXAMPLES,
    NODE,
    SHAPES,
    SIZE,
    STRATEGY_CHECKS,
    StrategyCase,
    allow_messages,
    ask_clients,
    make_deltas,
    make_reply,
    register_clients,
)


class StrategyContract:
    """Tests that a subclass of `strategies.PosteriorStrategy` must pass.

    Name your subclass `TestMine`, define `build`; pytest runs the rest. A stock strategy of Flower
    cannot pass: it averages weights and ends the run on a bad reply.

    Attributes:
        extra_settings: Settings beyond temperature 0, as flat keys.
    """

    extra_settings: ClassVar[dict[str, Any]] = {}

    def build(
        self, settings: Settings, state: ServerState, shapes: list[tuple[int, ...]], cut: int
    ) -> Strategy:
        """Make your strategy, as the ServerApp does.

        Args:
            settings: The run's settings.
            state: The server's state, with the model that training starts from.
            shapes: The shapes of the model's arrays.
            cut: Number of the encoder's parameters.

        Returns:
            The strategy.
        """
        raise NotImplementedError

    def settings(self) -> Settings:
        """Make the settings of a run.

        Returns:
            Ten rounds, of which burn-in takes five.
        """
        base = {"clients": len(EXAMPLES), "rounds": 10, "temperature": 0.0, "chain.burn-in": 0.5}
        return parse_settings(base | self.extra_settings)

    def build_registered(self, state: ServerState | None = None) -> Any:
        """Make a strategy whose four nodes are registered.

        Args:
            state: The server's state, or None for that before round 1.

        Returns:
            The strategy.
        """
        state = state or init_server_state(torch.linspace(-1, 1, SIZE))
        return register_clients(self.build(self.settings(), state, SHAPES, CUT))

    def run_round(
        self, strategy: Any, deltas: Sequence[Any], order: Sequence[int] = range(len(EXAMPLES))
    ) -> torch.Tensor:
        """Run one round.

        Args:
            strategy: The strategy.
            deltas: For each client its arrays, or a function (message, client) that makes its
                reply.
            order: In which the clients' replies arrive.

        Returns:
            The model after the round, flat.
        """
        with allow_messages():
            number = strategy.state.round + 1 - strategy.first_round
            replies = []
            for message in ask_clients(strategy, number):
                client = message.metadata.dst_node_id - NODE
                replies.append(make_reply(message, client, deltas[client]))
            model, _ = strategy.aggregate_train(number, [replies[i] for i in order])
        vector = to_vector(model.to_numpy_ndarrays())
        assert torch.equal(vector, strategy.state.model)
        return vector

    def make_deltas(self, seed: int) -> list[Any]:
        """Draw small valid deltas that have most of their direction in common.

        Args:
            seed: The seed of what differs; the common part is the same for every seed.

        Returns:
            The arrays of each client.
        """
        return make_deltas(seed)

    @pytest.mark.parametrize("check", STRATEGY_CHECKS, ids=name_check)
    def test_it_passes_what_every_run_checks(self, check: Callable[[StrategyCase], None]) -> None:
        """The short form of the contract, to which every run holds a strategy of your own."""
        check(StrategyCase(self.build_registered))

    def test_each_client_is_told_its_weight(self) -> None:
        """Every message has the round, the client's weight, the sum of examples, the model."""
        strategy = self.build_registered()
        with allow_messages():
            messages = ask_clients(strategy, 1)
        configs: list[Any] = [m.content.config_records[record_names.CONFIG] for m in messages]
        total = sum(EXAMPLES.values())
        assert {config[record_names.ROUND] for config in configs} == {1}
        assert {config[record_names.TOTAL] for config in configs} == {total}
        weights = [config[record_names.WEIGHT] for config in configs]
        np.testing.assert_allclose(weights, [n / total for n in EXAMPLES.values()], rtol=1e-6)
        for message in messages:
            arrays = message.content.array_records[record_names.ARRAYS].to_numpy_ndarrays()
            assert torch.equal(to_vector(arrays), strategy.state.model)

    def test_a_valid_round_moves_the_model(self) -> None:
        """Along what the clients have in common, finite, one round on, nobody left out."""
        strategy = self.build_registered()
        before = strategy.state.model.clone()
        deltas = self.make_deltas(1)
        move = self.run_round(strategy, deltas) - before
        mean = torch.stack([to_vector(delta) for delta in deltas]).mean(0)
        assert move.isfinite().all()
        assert torch.cosine_similarity(move, mean, 0) > 0.5
        assert strategy.state.round == 1
        assert (strategy.report.clients, strategy.rejected) == ([*EXAMPLES], [])

    def test_the_order_of_arrival_changes_no_bit(self) -> None:
        """Replies arrive as they are sent, from fast and slow nodes."""
        ordered, shuffled = self.build_registered(), self.build_registered()
        for seed in (1, 2):
            deltas = self.make_deltas(seed)
            model = self.run_round(ordered, deltas)
            assert torch.equal(self.run_round(shuffled, deltas, (2, 0, 3, 1)), model)

    @pytest.mark.parametrize("kind", ["nan", "shape", "dtype", "count", "error", "record"])
    def test_a_bad_reply_is_left_out(self, kind: str) -> None:
        """With its reason and its client, and the round goes on with the others."""
        strategy = self.build_registered()
        deltas = self.make_deltas(1)
        before = strategy.state.model.clone()
        deltas[2] = make_bad_content(kind, deltas[2])
        move = self.run_round(strategy, deltas) - before
        assert move.isfinite().all()
        assert move.any()
        assert 2 not in strategy.report.clients
        (rejection,) = [r for r in strategy.rejected if r.client == 2]
        assert rejection.reason

    def test_a_round_without_valid_replies_is_an_error(self) -> None:
        """RoundError, and the state is that of before."""
        strategy = self.build_registered()
        before = strategy.state
        deltas = [make_bad_content("nan", delta) for delta in self.make_deltas(1)]
        with pytest.raises(RoundError):
            self.run_round(strategy, deltas)
        assert strategy.state.round == before.round
        assert torch.equal(strategy.state.model, before.model)

    def test_the_encoder_is_frozen_after_burn_in(self) -> None:
        """Round six on: one message serves all heads because the encoder is equal to the bit."""
        strategy = self.build_registered()
        for seed in range(5):
            last = self.run_round(strategy, self.make_deltas(seed)).clone()
        for seed in (5, 6):
            model = self.run_round(strategy, self.make_deltas(seed))
            assert torch.equal(model[:CUT], last[:CUT])
            assert not torch.equal(model[CUT:], last[CUT:])

    def test_a_resumed_run_ends_in_the_same_bits(self) -> None:
        """Whatever the strategy remembers beyond its `state` would be lost."""
        whole, resumed = self.build_registered(), self.build_registered()
        for seed in range(4):
            first = self.run_round(whole, self.make_deltas(seed))
            second = self.run_round(resumed, self.make_deltas(seed))
            resumed = self.build_registered(resumed.state)
            assert torch.equal(first, second)


def make_bad_content(kind: str, delta: list[Any]) -> Any:
    """Return what a faulty client sends in the place of its delta."""

    def claim_too_many_examples(message: Message, client: int) -> Message:
        reply = make_reply(message, client, delta)
        reply.content.metric_records[record_names.METRICS][record_names.EXAMPLES] = 10**6
        return reply

    with_nan = [array.copy() for array in delta]
    with_nan[0].flat[0] = np.nan
    contents: dict[str, Any] = {
        "nan": with_nan,
        "shape": [array.T for array in delta],
        "dtype": [array.astype(np.float64) for array in delta],
        "count": claim_too_many_examples,
        "error": lambda m, client: Message(Error(2, "out of memory"), reply_to=m),
        "record": lambda m, client: Message(RecordDict(), reply_to=m),
    }
    return contents[kind]
