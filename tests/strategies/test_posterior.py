"""The strategy: which replies are left out, and what the sound ones make."""

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict

from fedcel import aggregation
from fedcel.settings import parse
from strategies import PosteriorStrategy

SHAPES = [(2, 3), (3,)]
EXAMPLES = {0: 10, 1: 30, 2: 60}


def nan() -> list[np.ndarray]:
    """Return arrays with one NaN."""
    arrays = [np.zeros(s, np.float32) for s in SHAPES]
    arrays[0][0, 0] = np.nan
    return arrays


def strategy(**raw: object) -> PosteriorStrategy:
    """Return a strategy that has met three nodes: node 100 + k holds partition k."""
    settings = parse({"clients": 3, "strategy.momentum": 0.0, **raw})
    found = PosteriorStrategy(settings, aggregation.start(torch.zeros(9)), SHAPES, 6)
    found.partition = {100 + k: k for k in EXAMPLES}
    found.examples = dict(EXAMPLES)
    found.weights = {k: n / 100 for k, n in EXAMPLES.items()}
    return found


def reply(client: int, value: float = 1.0, **change: object) -> Message:
    """Return a client's reply, sound unless `change` says otherwise."""
    asked = Message(RecordDict(), dst_node_id=100 + client, message_type="train")
    arrays = change.get("arrays", [np.full(s, value, np.float32) for s in SHAPES])
    content = RecordDict(
        {
            str(change.get("key", "delta")): ArrayRecord(arrays),
            "metrics": MetricRecord(
                {
                    "num-examples": change.get("examples", EXAMPLES.get(client, 5)),
                    "partition": client,
                    "loss": float(client),
                }
            ),
        }
    )
    return Message(content, reply_to=asked)


def failed(client: int) -> Message:
    """Return the reply of a client that raised."""
    asked = Message(RecordDict(), dst_node_id=100 + client, message_type="train")
    return Message(Error(2, "ValueError: no images"), reply_to=asked)


def test_weighted_mean_in_the_order_of_partitions_whatever_arrives_first() -> None:
    """.1 * 1 + .3 * 2 + .6 * 3 = 2.5, the same bits for every order of arrival."""
    models = []
    for order in ([0, 1, 2], [2, 0, 1]):
        s = strategy()
        arrays, metrics = s.aggregate_train(1, [reply(k, k + 1.0) for k in order])
        assert arrays is not None
        assert metrics is not None
        assert metrics["loss"] == pytest.approx(0.3 + 1.2)
        assert s.rejected == []
        models.append(s.state.model)
        np.testing.assert_allclose(arrays.to_numpy_ndarrays()[0], 2.5, rtol=1e-6)
    assert torch.equal(*models)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"key": "weights"}, "records"),
        ({"examples": 10**9}, "claims 1000000000 examples and held 30"),
        ({"examples": -1}, "claims -1"),
        ({"arrays": [np.zeros((2, 3), np.float32)]}, "shapes"),
        ({"arrays": [np.zeros(s, np.float64) for s in SHAPES]}, "dtypes"),
        ({"arrays": nan()}, "NaN or infinity"),
        ({"value": np.inf}, "NaN or infinity"),
        ({"value": 1e30}, "its norm is 3e"),
        ({"fails": True}, "the client failed: ValueError: no images"),
    ],
    ids=str,
)
def test_a_bad_reply_is_left_out_with_its_reason(change: dict[str, Any], reason: str) -> None:
    """The rest makes the model, its weights topped up: (.1 * 1 + .6 * 3)/.7."""
    s = strategy(**{"strategy.max-norm": 1e6})
    bad = failed(1) if change.pop("fails", False) else reply(1, **change)
    arrays, _ = s.aggregate_train(1, [reply(0, 1.0), bad, reply(2, 3.0)])
    assert len(s.rejected) == 1
    assert s.rejected[0]["client"] == 1
    assert reason in str(s.rejected[0]["reason"])
    assert arrays is not None
    np.testing.assert_allclose(arrays.to_numpy_ndarrays()[0], 1.9 / 0.7, rtol=1e-5)


def test_silence_a_stranger_and_a_second_reply_are_said() -> None:
    """No reply from 2, one from a node never asked, two from 0."""
    s = strategy()
    arrays, _ = s.aggregate_train(1, [reply(0), reply(1), reply(0, 9.0), reply(7)])
    reasons = {(r["client"], r["reason"]) for r in s.rejected}
    assert reasons == {
        (0, "a second reply"),
        (-1, "it is from a node that was not asked"),
        (2, "no reply"),
    }
    assert arrays is not None


def test_no_sound_reply_leaves_the_model_as_it_is() -> None:
    """(None, None) makes Flower keep the last arrays; the state does not move."""
    s = strategy()
    assert s.aggregate_train(1, [failed(0), failed(1)]) == (None, None)
    assert not s.state.model.any()
    assert len(s.rejected) == 3


def test_the_encoder_stays_after_burn_in() -> None:
    """Scope head: the first `cut` parameters do not move in a sampling round."""
    s = strategy(rounds=10, **{"chain.burn-in": 0.6})
    s.state = s.state._replace(round=7, average=torch.ones(9))
    s.aggregate_train(8, [reply(k) for k in EXAMPLES])
    assert not s.state.model[:6].any()
    assert s.state.model[6:].all()
