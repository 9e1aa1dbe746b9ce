"""The strategy: which replies are left out, and what the sound ones make."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message

from fedcel.federation import Rejection, record_names
from fedcel.losses.cel import GoalControl
from strategies import PosteriorStrategy
from tests.strategies.grid import EXAMPLES, SHAPES, FakeGrid, begin, failed, reply, strategy


def test_the_order_of_arrival_changes_no_bit() -> None:
    """Deltas of mixed sizes: floating-point sums depend on the order, ours does not."""
    noise = np.random.default_rng(0)
    deltas = {k: [noise.standard_normal(s).astype(np.float32) for s in SHAPES] for k in EXAMPLES}
    models = []
    for order in itertools.permutations(EXAMPLES):
        s = strategy()
        s.aggregate_train(1, [reply(k, arrays=deltas[k]) for k in order])
        models.append(s.state.model)
    assert all(torch.equal(models[0], model) for model in models)


def test_silence_and_a_stranger_are_said() -> None:
    """No reply from 2, one from a node never asked."""
    s = strategy()
    arrays, _ = s.aggregate_train(1, [reply(0), reply(1), reply(7)])
    reasons = {(r.client, r.reason) for r in s.rejected}
    assert reasons == {
        (-1, "it is from a node that was not asked"),
        (2, "no reply"),
    }
    assert arrays is not None


@pytest.mark.parametrize("make_first", [reply, failed])
def test_a_client_that_replies_twice_is_used_and_not_rejected(
    make_first: Callable[[int], Message],
) -> None:
    """The first valid reply counts; nobody is left out."""
    s = strategy()
    s.aggregate_train(1, [make_first(0), reply(1), reply(2), reply(0)])
    assert s.report.clients == [0, 1, 2]
    assert s.rejected == s.report.rejected == []
    torch.testing.assert_close(s.state.model, torch.ones(9))


class Reset(PosteriorStrategy):
    """Goes to a model of its own, whatever the clients send."""

    def step(self, delta: ArrayRecord) -> ArrayRecord:
        """Return sevens, and leave `state` alone."""
        return ArrayRecord([np.full(shape, 7, np.float32) for shape in SHAPES])


def test_the_model_that_a_step_returns_is_the_next_one() -> None:
    """And the round is over, though the subclass did not say so in `state`."""
    s = strategy(Reset)
    arrays, _ = s.aggregate_train(1, [reply(0), reply(1), reply(2)])
    assert arrays is not None
    assert s.state.round == 1
    assert torch.equal(s.state.model, torch.full((9,), 7.0))
    np.testing.assert_array_equal(arrays.to_numpy_ndarrays()[0], 7)


def test_the_threshold_goes_down_with_the_round() -> None:
    """Exactly the server's number, to each client."""
    s = strategy(**{"cel.kind": "cluster", "cel.warm-up": 1, "rounds": 10})
    s.state = s.state._replace(round=1, control=GoalControl("threshold", 0.25))
    begin(s)
    model = ArrayRecord([np.zeros(shape, np.float32) for shape in SHAPES])
    sent = list(s.configure_train(2, model, ConfigRecord(), FakeGrid([])))  # type: ignore[arg-type]
    assert len(sent) == 3
    for message in sent:
        assert message.content[record_names.CONFIG][record_names.THRESHOLD] == 0.25
        assert record_names.GAMMA not in message.content[record_names.CONFIG]


def test_the_encoder_stays_after_burn_in() -> None:
    """Scope head: the first `cut` parameters do not move in a sampling round."""
    s = strategy(rounds=10, **{"chain.burn-in": 0.6})
    s.state = s.state._replace(round=7, average=torch.ones(9))
    begin(s)
    s.aggregate_train(8, [reply(k) for k in EXAMPLES])
    assert not s.state.model[:6].any()
    assert s.state.model[6:].all()


def test_a_client_whose_node_is_gone_is_left_out_of_the_round() -> None:
    """Its weight stays its own; the others are asked, and the round says who was missing."""
    s = strategy()
    del s.registry.partitions[101]
    model = ArrayRecord([np.zeros(shape, np.float32) for shape in SHAPES])
    sent = s.configure_train(1, model, ConfigRecord(), FakeGrid([]))  # type: ignore[arg-type]
    assert [message.metadata.dst_node_id for message in sent] == [100, 102]
    s.aggregate_train(1, [reply(0, 1.0), reply(2, 3.0)])
    assert s.rejected == [Rejection(1, "no node holds it any more")]
    assert s.report.clients == [0, 2]


@pytest.mark.parametrize("value", [1e30, 3e38, 1e5])
def test_by_default_no_update_may_dwarf_the_model(value: float) -> None:
    """Finite and huge: left out, and the round goes on; a thousand times the model's norm, + 1."""
    s = strategy()
    s.aggregate_train(1, [reply(0), reply(1, value), reply(2)])
    assert "at most 1000 is accepted" in str(s.rejected[0].reason)
    assert s.state.model.abs().max() < 10
    s.state, s.rejected = s.state._replace(model=torch.full((9,), 1e3)), []
    begin(s)
    s.aggregate_train(2, [reply(0), reply(1, 1e5), reply(2)])
    assert s.rejected == []


def test_an_update_of_frozen_parameters_is_left_out() -> None:
    """They are no client's to move: the others' model stays as it is there."""
    instance = strategy()
    instance.state = instance.state._replace(trained=torch.tensor([6, 7, 8]))
    moved = [np.ones((2, 3), np.float32), np.ones(3, np.float32)]
    assert instance.fault(reply(0, arrays=moved)) == (
        "it moves parameters that are frozen (requires_grad=False)"
    )
    moved[0] *= 0
    assert instance.fault(reply(0, arrays=moved)) is None
