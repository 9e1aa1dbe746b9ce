"""A node refuses a model whose encoder leaks of its images; its log says what it measured."""

import logging

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from clients import make_client_app
from clients.flower.training_guard import count_models
from fedcel.data import Images, load_splits
from fedcel.errors import LeakError, SettingsError
from fedcel.federation import record_names
from fedcel.nets import FlatNet
from fedcel.nets.flat_net import to_arrays
from fedcel.run_parts import init_net
from fedcel.settings import parse_settings

S = parse_settings(
    {"clients": 4, "local.steps": 1, "rounds": 10, "net.noise": 1.0, "net.features": 16}
)
SPLITS = load_splits(S.data, S.clients, S.seed)
HONEST = init_net(S, SPLITS)


def hijack() -> FlatNet:
    """Return the net with parameters so large that its features are far apart."""
    loud = init_net(S, SPLITS)
    loud.load(8 * HONEST.vector)
    return loud


def node(**config: object) -> Context:
    return Context(1, 101, {"partition-id": 1, **config}, RecordDict(), {})  # type: ignore[dict-item]


def send(flat: FlatNet, at: Context) -> Message:
    """Send a model to the node as a server does, in round 3."""
    config = ConfigRecord(
        {record_names.ROUND: 3, record_names.WEIGHT: 0.25, record_names.TOTAL: 997}
    )
    arrays = ArrayRecord(to_arrays(flat.vector, flat.shapes))
    content = RecordDict({record_names.ARRAYS: arrays, record_names.CONFIG: config})
    return make_client_app(S)(Message(content, dst_node_id=101, message_type="train"), at)


def test_a_hijacked_model_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """The honest one is trained on; the number is in the node's log and not in the answer."""
    at = node(**{"leak-limit": 0.2})
    with caplog.at_level(logging.INFO, "flwr"):
        logging.getLogger("flwr").addHandler(caplog.handler)
        assert record_names.DELTA in send(HONEST, at).content
        with pytest.raises(LeakError, match="refuses the model of round 3") as refused:
            send(hijack(), at)
        logging.getLogger("flwr").removeHandler(caplog.handler)
    assert "leaks up to" not in str(refused.value)
    assert "leaks up to" in caplog.records[0].getMessage()
    assert "model refused" in caplog.records[-1].getMessage()
    assert count_models(at) == 1


def test_images_of_bytes_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """They leak as much as the numbers that they are: little, of an untrained net."""
    x, y = SPLITS.clients[1]
    images = Images((255 * x).round().to(torch.uint8), y)
    monkeypatch.setattr(
        "clients.flower.training_guard.select_client_images", lambda settings, client: images
    )
    assert record_names.DELTA in send(HONEST, node(**{"leak-limit": 0.2})).content


def test_the_limit_holds_after_models_that_the_node_counts() -> None:
    """Whatever round the server names: two pass, the third is refused; without a limit all pass."""
    at = node(**{"leak-limit": 0.2, "leak-after": 2})
    for _ in range(2):
        send(hijack(), at)
    with pytest.raises(LeakError):
        send(hijack(), at)
    free = node()
    send(hijack(), free)
    assert record_names.GUARD not in free.state


@pytest.mark.parametrize(
    "config",
    [
        {"leak-limit": 0},
        {"leak-limit": "much"},
        {"leak-limit": 1.0, "leak-after": -1},
        {"leak-after": 1},
    ],
)
def test_what_is_no_limit_is_refused(config: dict[str, object]) -> None:
    """Before anything is measured."""
    with pytest.raises(SettingsError, match="leak-"):
        send(HONEST, node(**config))
