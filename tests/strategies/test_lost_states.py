"""A client starts from the state of its last round, or it is told that it could not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Error, Message
from flwr.common.constant import ErrorCode

from fedcel.errors import RoundError
from fedcel.federation import record_names
from fedcel.files import read_json
from fedcel.runs import Event, partition_folder
from fedcel.settings import parse_settings
from sims.engines.simulated_grid import InMemoryGrid
from tests.strategies.federation import Events, make_app, train_nodes
from tests.strategies.stock_matrix import FEDAVG

GATED: dict[str, Any] = {
    "engine": "local",
    "clients": 3,
    "rounds": 4,
    "local.steps": 3,
    "net.width": 16,
    "net.features": 8,
    "temperature": 0.0,
    "cel.kind": "gated",
    "cel.warm-up": 0,
    "cel.ramp": 0.01,
    "data.test": 100,
}


MOVED = 1
"""The client whose node is another from round 3 on."""
Move = Callable[[Context], None]


def train(
    folder: Path,
    moves: dict[int, Move] | None = None,
    *,
    states: Path | None = None,
    grid: type[InMemoryGrid] = InMemoryGrid,
    more: dict[str, Any] | None = None,
    **change: Any,
) -> tuple[torch.Tensor, Events]:
    """Return model and rounds of a federation; before some rounds a node is moved."""
    settings = parse_settings(GATED | change)

    def befall(context: Context, number: int) -> None:
        if context.node_config["partition-id"] == MOVED and moves and number in moves:
            moves[number](context)

    nodes = grid(make_app(settings, befall), settings.clients, states)
    return train_nodes(folder, settings, nodes, **(more or {}))


def forget(context: Context) -> None:
    """Leave the node as it is started elsewhere: without any state."""
    context.state.clear()


@pytest.mark.parametrize("change", [{}, FEDAVG], ids=["ours", "stock"])
def test_a_node_that_moved_without_its_state_is_told(
    tmp_path: Path, change: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """In the log, its round and the result; an undisturbed run says nothing."""
    undisturbed, rounds = train(tmp_path / "whole", **change)
    assert not any("lost-states" in event for event in rounds)
    assert "began afresh" not in caplog.text
    model, rounds = train(tmp_path / "moved", {3: forget}, more={"measure": True}, **change)
    assert not torch.equal(model, undisturbed)
    assert [event.get("lost-states") for event in rounds] == [None, None, [MOVED], None]
    assert caplog.text.count("Client 1 began afresh: its node has not the losses' state") == 1
    result: Any = read_json(tmp_path / "moved" / "result.json")
    assert result["lost-states"] == 1


def test_a_state_of_an_older_round_is_not_taken(tmp_path: Path) -> None:
    """A node that comes back with what it had two rounds ago begins afresh, as one with nothing."""
    older: dict[str, Any] = {}

    def note(context: Context) -> None:
        older.update({k: v for k, v in context.state.items() if k.startswith(record_names.STATE)})

    def restore(context: Context) -> None:
        context.state.clear()
        context.state.update(older)

    model, rounds = train(tmp_path / "old", {2: note, 4: restore})
    assert rounds[-1]["lost-states"] == [MOVED]
    assert torch.equal(model, train(tmp_path / "none", {4: forget})[0])


def test_a_client_that_was_left_out_starts_from_the_state_before(tmp_path: Path) -> None:
    """An update that came too late is in no model; what its round learned is in no state, too."""

    def fail(context: Context) -> None:
        raise RuntimeError("no network")

    class LateGrid(InMemoryGrid):
        """Puts an error in the place of a reply: its client has trained."""

        def _deliver(self, message: Message) -> str:
            key = super()._deliver(message)
            config = message.content.config_records[record_names.CONFIG]
            is_moved = message.metadata.dst_node_id == list(self.contexts)[MOVED]
            if (
                is_moved
                and config[record_names.ROUND] == 2
                and "delta" in self.replies[key].content
            ):
                error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "no network")
                self.replies[key] = Message(error, reply_to=message)
            return key

    failed, _ = train(tmp_path / "failed", {2: fail})
    late, rounds = train(tmp_path / "late", grid=LateGrid)
    assert [len(event["rejected"]) for event in rounds] == [0, 1, 0, 0]
    assert torch.equal(failed, late)


@pytest.mark.parametrize("change", [{}, FEDAVG], ids=["ours", "stock"])
def test_in_a_simulation_a_lost_state_is_an_error_with_its_remedy(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    """As is one of another round in its place: no other state is trained upon."""
    change = change | {"strategy.least-share": 1.0}

    def train_and_spoil(name: str, spoil: Callable[[Path, Path], object], reason: str) -> None:
        states = tmp_path / name / "state"
        paths = [partition_folder(states, MOVED) / f"{k:06d}.safetensors" for k in (1, 2)]

        def spoil_after_round_2(event: Event) -> None:
            if event["round"] == 2:
                spoil(*paths)

        more = {"show_round": spoil_after_round_2}
        with pytest.raises(RoundError, match=reason):
            train(tmp_path / name, states=states, more=more, **change)

    train_and_spoil(
        "lost", lambda older, newer: newer.unlink(), r"000002.safetensors is missing: .*put back"
    )
    train_and_spoil(
        "old", lambda older, newer: older.rename(newer), "is of round 1, must be of round 2"
    )


@pytest.mark.parametrize("change", [{}, FEDAVG], ids=["ours", "stock"])
def test_of_two_nodes_with_one_key_one_is_kept(
    tmp_path: Path, change: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A second machine takes over without a state; when the first answers again it is left out."""
    first: dict[str, Any] = {}

    def leave(context: Context) -> None:
        first.update(context.state)
        context.state.clear()

    def come_back(context: Context) -> None:
        context.state.update(first)

    moves = {2: leave, 3: come_back}
    change = {**change, "strategy.least-share": 0.1}
    _, rounds = train(tmp_path / "two", moves, more={"measure": True}, **change)
    number = first[record_names.INCARNATION][record_names.INCARNATION]
    left_out = record_names.name_incarnation(number)
    assert [[r["client"] for r in event["rejected"]] for event in rounds] == [
        [],
        [],
        [MOVED],
        [MOVED],
    ]
    assert [event.get("lost-states") for event in rounds] == [None, [MOVED], None, None]
    (current, other) = rounds[-1]["shared-keys"][str(MOVED)]
    assert other == left_out != current
    assert f"two nodes have its key: {current} is kept, {left_out} left out" in caplog.text
    result: Any = read_json(tmp_path / "two" / "result.json")
    assert result["shared-keys"] == {str(MOVED): [current, left_out]}


def test_losses_without_a_state_need_none(tmp_path: Path) -> None:
    """Nothing is kept, so that nothing can be lost."""
    _, rounds = train(tmp_path / "run", {3: forget}, **{"cel.kind": "plain"})
    assert not any("lost-states" in event for event in rounds)
