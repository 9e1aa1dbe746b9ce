"""A round waits for lost nodes that it cannot do without, and goes on by itself."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from clients import make_client_app
from fedcel.errors import RoundError
from fedcel.federation import record_names
from fedcel.runs import Event
from fedcel.runs.run_folder import read_requested_rounds
from fedcel.settings import parse_settings
from sims.engines.simulated_grid import InMemoryGrid
from strategies import node_registry, posterior_strategy
from tests.strategies.federation import Events, train_nodes

GATED: dict[str, Any] = {
    "engine": "local",
    "clients": 3,
    "rounds": 3,
    "local.steps": 3,
    "net.width": 16,
    "net.features": 8,
    "cel.kind": "gated",
    "cel.warm-up": 0,
    "cel.ramp": 0.01,
    "data.test": 100,
}


def train(
    folder: Path, grid: type[InMemoryGrid] = InMemoryGrid, **change: Any
) -> tuple[torch.Tensor, Events]:
    """Return model and rounds of a federation of nodes."""
    settings = parse_settings(GATED | change)
    return train_nodes(folder, settings, grid(make_client_app(settings), settings.clients))


class CutGrid(InMemoryGrid):
    """A grid on which some clients' nodes are lost in round 2, after they trained."""

    cut_off: tuple[int, ...] = (0, 1, 2)
    looks = 3
    """After so many the nodes are back."""

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes that are there."""
        self.looks -= self._is_cut
        self._is_cut = self._is_cut and self.looks > 0
        lost = {2 + k for k in self.cut_off} if self._is_cut else set()
        return [node for node in self.contexts if node not in lost]

    _is_cut = _was_cut = False

    def _deliver(self, message: Message) -> str:
        key = super()._deliver(message)
        number = message.content.config_records[record_names.CONFIG].get(record_names.ROUND)
        is_asked = message.metadata.message_type == "train" and number == 2
        if is_asked and message.metadata.dst_node_id - 2 in self.cut_off and not self._was_cut:
            error = Error(ErrorCode.NODE_UNAVAILABLE, "Node Unavailable")
            self.replies[key] = Message(error, reply_to=message)
            self._is_cut = True
        return key

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Return the answers; the network is cut once."""
        replies = super().send_and_receive(messages, timeout=timeout)
        self._was_cut = self._is_cut
        return replies


def test_nodes_that_come_back_change_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each trains the round again from the state before it; the log says who is waited for."""
    monkeypatch.setattr(posterior_strategy, "_LOOK_SECONDS", 0.0)
    model, rounds = train(tmp_path / "cut", CutGrid)
    assert [event["rejected"] for event in rounds] == [[]] * 3
    assert "Round 2 waits for the nodes of clients 0, 1, 2, which are lost" in caplog.text
    assert torch.equal(model, train(tmp_path / "calm")[0])


def test_nodes_that_stay_away_end_the_run_once_the_timeout_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the reason that there is."""
    monkeypatch.setattr(CutGrid, "looks", 10**9)
    with pytest.raises(RoundError, match=r"no client of 3 .*Node Unavailable"):
        train(tmp_path / "cut", CutGrid, **{"strategy.timeout": 0.1})


def test_noisy_updates_that_are_asked_for_again_are_accounted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes were lost once they had trained: a server that listens has two updates of round 2."""
    monkeypatch.setattr(posterior_strategy, "_LOOK_SECONDS", 0.0)
    noisy = {"temperature": 0.0, "update.clip": 1.0, "update.noise": 0.5}
    train(tmp_path / "cut", CutGrid, **noisy)
    assert read_requested_rounds(tmp_path / "cut") == [1, 2, 2, 3]
    train(tmp_path / "calm", **noisy)
    assert read_requested_rounds(tmp_path / "calm") == [1, 2, 3]


class DyingGrid(InMemoryGrid):
    """A grid on which the process of a node dies in each training, and is started again."""

    def _deliver(self, message: Message) -> str:
        key = super()._deliver(message)
        if message.metadata.message_type == "train" and message.metadata.dst_node_id == 3:
            error = Error(ErrorCode.NODE_UNAVAILABLE, "Node Unavailable")
            self.replies[key] = Message(error, reply_to=message)
        return key


def test_a_node_that_dies_in_each_training_holds_a_round_until_its_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is back at once each time, and asked again."""
    monkeypatch.setattr(posterior_strategy, "_LOOK_SECONDS", 0.0)
    with pytest.raises(RoundError, match="Node Unavailable"):
        train(tmp_path / "run", DyingGrid, **{"strategy.timeout": 0.5, "strategy.least-share": 1.0})


class ReplacedGrid(CutGrid):
    """A grid on which a node is lost in round 2, and another replaced while that is waited for."""

    cut_off = (1,)

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes that are there: 9 in the place of 2, once that has answered."""
        if self._is_cut and 9 not in self.contexts:
            first = self.contexts.pop(2)
            self.contexts[9] = Context(1, 9, first.node_config, RecordDict(), {})
        return super().get_node_ids()


def test_an_answer_counts_though_its_node_is_replaced_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All three clients are in the model of each round."""
    monkeypatch.setattr(posterior_strategy, "_LOOK_SECONDS", 0.0)
    _, rounds = train(tmp_path / "cut", ReplacedGrid, **{"strategy.least-share": 1.0})
    assert [event["rejected"] for event in rounds] == [[]] * 3


def test_a_round_that_has_its_share_waits_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One of three is left out."""
    monkeypatch.setattr(CutGrid, "cut_off", (1,))
    _, rounds = train(tmp_path / "cut", CutGrid)
    assert [len(event["rejected"]) for event in rounds] == [0, 1, 0]
    assert "waits for" not in caplog.text


class DarkGrid(InMemoryGrid):
    """A grid after a loss of power: nodes that still count as online are lost when first asked."""

    dark: frozenset[int] = frozenset()
    looks = 3
    """After so many the nodes are back."""
    _is_dark = False

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes that are there."""
        self.looks -= self._is_dark
        if self.looks <= 0:
            self.dark, self._is_dark = frozenset(), False
        return [node for node in self.contexts if not (self._is_dark and node in self.dark)]

    def _deliver(self, message: Message) -> str:
        if message.metadata.dst_node_id not in self.dark:
            return super()._deliver(message)
        self._is_dark, key = True, self._new_id()
        error = Error(ErrorCode.NODE_UNAVAILABLE, "Node Unavailable")
        self.replies[key] = Message(error, reply_to=message)
        return key


def test_a_run_that_is_resumed_before_its_nodes_are_back_waits_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two of three nodes are lost when they are asked what they hold: they are asked again."""
    monkeypatch.setattr(posterior_strategy, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(node_registry, "WAIT_SECONDS", 0.0)
    settings, folder = parse_settings(GATED | {"strategy.timeout": 20}), tmp_path / "dark"

    def end_after_a_round(event: Event) -> None:
        raise KeyboardInterrupt

    grid = DarkGrid(make_client_app(settings), settings.clients)
    with pytest.raises(KeyboardInterrupt):
        train_nodes(folder, settings, grid, show_round=end_after_a_round)
    grid.dark = frozenset({2, 4})
    model, _ = train_nodes(folder, settings, grid, resume=True)
    assert "Round 2 waits for the nodes of clients 0, 2, which are lost" in caplog.text
    assert torch.equal(model, train(tmp_path / "calm")[0])
