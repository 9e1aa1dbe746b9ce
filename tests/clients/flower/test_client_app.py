"""The ClientApp's three handlers, called as Flower calls them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from clients import make_client_app
from clients.flower.posterior_client import select_metrics
from fedcel.errors import SettingsError
from fedcel.federation import (
    ClientUpdate,
    record_names,
)
from fedcel.nets.flat_net import to_arrays
from fedcel.run_parts import build_workspace_net, select_client_images
from fedcel.settings import Settings, parse_settings

RAW = {"clients": 4, "local.steps": 3, "cel.kind": "cluster", "cel.warm-up": 0, "rounds": 10}
S = parse_settings(RAW)


def context(partition: int = 1, **config: object) -> Context:
    """Return the context of a node that holds `partition`."""
    return Context(1, 101, {"partition-id": partition, **config}, RecordDict(), {})


def ask(kind: str, content: RecordDict, at: Context, settings: Settings | None = S) -> Message:
    """Send a message through the app."""
    message = Message(content, dst_node_id=101, message_type=kind)
    return make_client_app(settings)(message, at)


def round_content(number: int) -> RecordDict:
    flat = build_workspace_net(S)
    model = 0.1 * torch.randn(flat.vector.numel(), generator=torch.Generator().manual_seed(0))
    config = ConfigRecord(
        {record_names.ROUND: number, record_names.WEIGHT: 0.25, record_names.TOTAL: 997}
    )
    return RecordDict(
        {
            record_names.ARRAYS: ArrayRecord(to_arrays(model, flat.shapes)),
            record_names.CONFIG: config,
        }
    )


def test_train_returns_a_delta_and_keeps_the_loss_state_at_the_client() -> None:
    """State stays in the context, out of the reply; the same round twice gives the same bits."""
    at = context()
    first = ask("train", round_content(5), at)
    assert set(first.content) == {record_names.DELTA, record_names.METRICS}
    assert set(at.state[f"{record_names.STATE}-5"]) == {
        f"cel.{name}" for name in ("centres", "weights", "spreads", "counts")
    }
    assert first.content[record_names.METRICS]["partition"] == 1
    assert first.content[record_names.METRICS][record_names.ROUND] == 5
    assert first.content[record_names.METRICS]["spread"] > 0
    again = ask("train", round_content(5), context())
    pairs = zip(
        first.content[record_names.DELTA].to_numpy_ndarrays(),
        again.content[record_names.DELTA].to_numpy_ndarrays(),
        strict=True,
    )
    assert all(np.array_equal(a, b) and a.any() for a, b in pairs)


def test_a_node_with_a_folder_finds_its_state_again(tmp_path: object) -> None:
    """Round 6 after a restart equals round 6 without one."""
    earlier = context()
    ask("train", round_content(5), earlier)
    without = ask("train", round_content(6), earlier)
    path = {"state-path": str(tmp_path)}
    ask("train", round_content(5), context(**path))
    after = ask("train", round_content(6), context(**path))
    pairs = zip(
        without.content[record_names.DELTA].to_numpy_ndarrays(),
        after.content[record_names.DELTA].to_numpy_ndarrays(),
        strict=True,
    )
    assert all(np.array_equal(a, b) for a, b in pairs)


def test_the_threshold_comes_down_with_the_round() -> None:
    """A larger one than any class is wide switches the loss off: the delta is another."""
    raw = {**RAW, "cel.clusters": 1, "cel.penalty": "log"}
    settings = parse_settings({**raw, "cel.target": "spread"})
    content = round_content(5)
    content[record_names.CONFIG][record_names.THRESHOLD] = 1e-3
    reply = ask("train", content, context(), settings).content
    assert set(reply) == {record_names.DELTA, record_names.METRICS}
    content[record_names.CONFIG][record_names.THRESHOLD] = (
        1e3  # no class is this wide: the loss is 0
    )
    idle = (
        ask("train", content, context(), settings).content[record_names.DELTA].to_numpy_ndarrays()
    )
    assert not np.array_equal(idle[0], reply[record_names.DELTA].to_numpy_ndarrays()[0])


def test_a_loss_without_statistics_writes_no_state(tmp_path: object) -> None:
    """Two rounds of `plain` at a node with a folder: the second finds nothing damaged."""
    plain = parse_settings({**RAW, "cel.kind": "plain"})
    path = {"state-path": str(tmp_path)}
    for number in (5, 6):
        ask("train", round_content(number), context(**path), plain)
    assert not list(Path(str(tmp_path)).iterdir())


def test_evaluate_scores_the_model_and_its_private_answers() -> None:
    """NLL of a nearly constant model is near log 10."""
    metrics = ask("evaluate", round_content(3), context()).content[record_names.METRICS]
    assert metrics["nll"] == pytest.approx(np.log(10), abs=0.3)
    assert 0 <= metrics["private-top1-kept"] <= 1
    assert metrics[record_names.EXAMPLES] == len(select_client_images(S, 1).y)


def test_a_stock_strategy_gets_no_metrics_of_single_classes() -> None:
    """They differ from client to client, which Flower's strategies refuse."""
    update = ClientUpdate(
        torch.zeros(1), torch.zeros(1), {}, {"spread": 1.0, "spread-3": 2.0, "loss": 0.5}
    )
    assert select_metrics(update, {}) == {"spread": 1.0, "loss": 0.5}
    assert select_metrics(update, {record_names.WEIGHT: 0.5}) == update.metrics


def test_under_noise_a_node_sends_its_noisy_update_alone() -> None:
    """No metric of its images in the reply, no scores, whoever asks.

    Whose state it started from, and will, are the same however the training goes.
    """
    noisy = parse_settings(RAW | {"temperature": 0.0, "update.clip": 1.0, "update.noise": 0.1})
    reply = ask("train", round_content(5), context(), noisy)
    assert set(reply.content) == {record_names.DELTA, record_names.METRICS}
    assert set(reply.content[record_names.METRICS]) == {
        record_names.EXAMPLES,
        record_names.PARTITION,
        record_names.ROUND,
        record_names.STATE_START,
        record_names.INCARNATION,
        record_names.STATE_ROUND,
    }
    with pytest.raises(SettingsError, match="tells nothing else"):
        ask("evaluate", round_content(5), context(), noisy)
