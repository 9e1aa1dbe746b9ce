"""Which node holds what: before round 1, after a resume, and when one comes later."""

import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Message

from fedcel.errors import RunError, SettingsError
from fedcel.federation import init_server_state, record_names
from fedcel.files import read_tensors, write_tensors
from fedcel.runs import run_folder
from strategies import node_registry
from strategies.node_registry import NodeRegistry, count_nodes, register_nodes, reregister_nodes
from tests.strategies.grid import FakeGrid

KNOWN = {0: 10, 1: 11, 2: 12}


def sound(k: int, **change: Any) -> dict[str, Any]:
    """Return an honest node's answer, or one that differs."""
    return {record_names.EXAMPLES: 10 + k, record_names.PARTITION: k} | change


def back(
    grid: FakeGrid, partition: dict[int, int], met: NodeRegistry | None = None
) -> NodeRegistry:
    """Return who holds what after a round began; `met` is what was known, where it is more."""
    met = met or NodeRegistry(partition, KNOWN)
    return reregister_nodes(grid, met, ConfigRecord({record_names.ROUND: 4}), 7.0)  # type: ignore[arg-type]


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for no node."""
    monkeypatch.setattr(node_registry, "WAIT_SECONDS", 0.0)


def test_meeting_the_nodes_learns_partitions_and_counts() -> None:
    grid = FakeGrid([sound(2), sound(0), sound(1)])
    registry = register_nodes(grid, 3)  # type: ignore[arg-type]
    assert registry.partitions == {100: 2, 101: 0, 102: 1}
    assert (registry.examples, registry.has_node_data) == ({0: 10, 1: 11, 2: 12}, False)
    assert (registry.first_nodes, registry.refused) == ({2: 100, 0: 101, 1: 102}, {})
    assert (grid.asked, grid.timeout) == ([100, 101, 102], node_registry.ANSWER_SECONDS)


def test_many_nodes_are_asked_in_parts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each part has its own time, and a line says how far it is; a few nodes need none."""
    monkeypatch.setattr(node_registry, "AT_ONCE", 2)
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(logging.INFO, "flwr")
    grid, sizes = FakeGrid([sound(k) for k in range(5)]), []
    answer = grid.send_and_receive

    def count_and_answer(messages: list[Message], timeout: float) -> list[Message]:
        sizes.append(len(messages))
        return answer(messages, timeout)

    grid.send_and_receive = count_and_answer  # type: ignore[method-assign]
    registry = register_nodes(grid, 5)  # type: ignore[arg-type]
    assert registry.examples == {k: 10 + k for k in range(5)}
    assert sizes == [2, 2, 1] and grid.timeout == node_registry.ANSWER_SECONDS
    progress = [line for line in caplog.messages if "were asked what they hold" in line]
    assert [line.split(" nodes")[0] for line in progress] == ["2 of 5", "4 of 5", "5 of 5"]
    caplog.clear()
    register_nodes(FakeGrid([sound(0), sound(1)]), 2)  # type: ignore[arg-type]
    assert not caplog.messages


@pytest.mark.usefixtures("hurry")
def test_the_refusal_says_who_was_asked_who_was_silent_and_who_was_wrong() -> None:
    """Four nodes for four partitions: one is silent, one claims another's partition."""
    grid = FakeGrid([sound(0), None, sound(0), sound(3)])
    words = (
        "2 partitions answered, clients is 4; 4 nodes were asked; 1 gave no answer within 600 s, "
        "look into their logs for the reason; 1 were refused: partition 0 is another's; "
    )
    with pytest.raises(SettingsError, match=re.escape(words)):
        register_nodes(grid, 4)  # type: ignore[arg-type]


@pytest.mark.usefixtures("hurry")
def test_a_resumed_run_goes_on_without_a_node_that_is_gone() -> None:
    """Two of three are there; one with other images than before is turned away."""
    registry = register_nodes(FakeGrid([sound(2), sound(0)]), 3, None, KNOWN)  # type: ignore[arg-type]
    assert registry.partitions == {100: 2, 101: 0}
    assert registry.examples == KNOWN
    fewer = {record_names.EXAMPLES: 9, record_names.PARTITION: 1}
    registry = register_nodes(FakeGrid([sound(2), fewer, sound(0)]), 3, None, KNOWN)  # type: ignore[arg-type]
    assert registry.partitions == {100: 2, 102: 0}
    with pytest.raises(SettingsError, match="0 partitions answered"):
        register_nodes(FakeGrid([fewer]), 3, None, KNOWN)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="0 nodes are connected after 0 s, clients is 3"):
        register_nodes(FakeGrid([]), 3, None, KNOWN)  # type: ignore[arg-type]


@pytest.mark.usefixtures("hurry")
def test_a_resumed_run_that_recounts_takes_what_nodes_hold_now() -> None:
    """And what those held who are gone."""
    fewer = {record_names.EXAMPLES: 9, record_names.PARTITION: 1}
    grid = FakeGrid([fewer, sound(0)])
    registry = register_nodes(grid, 3, None, KNOWN, recount=True)  # type: ignore[arg-type]
    assert registry[:2] == ({100: 1, 101: 0}, {**KNOWN, 1: 9})


def test_nodes_are_counted_once_no_more_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """One comes a second late; a grid without any is given up after the minute."""
    grid = FakeGrid([sound(0), sound(1), sound(2)], away=[100, 101, 102])
    seconds = iter(range(999))

    def pass_time() -> float:
        now = next(seconds)
        grid.away -= {100 if now > 2 else 0, 101 if now > 4 else 0}
        return float(now)

    clock = SimpleNamespace(monotonic=pass_time, sleep=lambda _: None)
    monkeypatch.setattr(node_registry, "time", clock)
    assert count_nodes(grid) == 2  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="no node is connected after 60 s"):
        count_nodes(FakeGrid([]))  # type: ignore[arg-type]


class Late(FakeGrid):
    """Nodes that are `away` connect once others have been asked."""

    def send_and_receive(self, messages: list[Message], timeout: float) -> list[Message]:
        self.away = set()
        return super().send_and_receive(messages, timeout)


@pytest.mark.parametrize("known", [None, KNOWN], ids=["new", "resumed"])
@pytest.mark.parametrize("foreign", [sound(7), {}, None], ids=["other", "empty", "silent"])
def test_a_foreign_node_does_not_take_the_place_of_one_that_is_still_to_come(
    known: dict[int, int] | None, foreign: dict[str, Any] | None
) -> None:
    """Three nodes are there at once, one of them foreign; each is asked once."""
    grid = Late([sound(0), foreign, sound(1), sound(2)], away=[103])
    found = register_nodes(grid, 3, None, known)  # type: ignore[arg-type]
    assert found[:3] == ({100: 0, 102: 1, 103: 2}, KNOWN, False)
    assert (grid.asked, found.refused) == ([100, 101, 102, 103], {101: -1})


def test_who_came_while_a_silent_node_was_waited_for_is_asked_though_the_minute_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The wait for an answer is longer than the one for nodes."""
    grid = Late([sound(0), None, sound(1), sound(2)], away=[103])
    clock = SimpleNamespace(monotonic=lambda: 601.0 if grid.asked else 0.0)
    monkeypatch.setattr(node_registry, "time", clock)
    assert register_nodes(grid, 3).partitions == {100: 0, 102: 1, 103: 2}  # type: ignore[arg-type]


@pytest.mark.usefixtures("hurry")
def test_a_new_run_with_too_few_nodes_asks_nobody() -> None:
    """It says how many there are."""
    grid = FakeGrid([sound(0), sound(1), sound(2)])
    with pytest.raises(SettingsError, match="3 nodes are connected after 0 s, clients is 4"):
        register_nodes(grid, 4)  # type: ignore[arg-type]
    assert grid.asked == []


def test_who_comes_later_takes_the_partition_that_nobody_has() -> None:
    """Partition 1 had no node since a resume; 102 is a stranger, with the images of 1."""
    grid = FakeGrid([sound(0), sound(2), sound(1, **{record_names.HAS_NODE_DATA: 1})])
    registry = back(grid, {100: 0, 101: 2})
    assert registry[:3] == ({100: 0, 101: 2, 102: 1}, KNOWN, True)
    assert (grid.asked, grid.timeout) == ([102], 7.0)


def test_a_node_under_a_new_number_replaces_the_one_that_it_was() -> None:
    """101 held partition 1 and is gone; without a key it is another node when it is back."""
    grid = FakeGrid([sound(0), sound(1), sound(2), sound(1)], away=[101])
    assert back(grid, {100: 0, 101: 1, 102: 2}).partitions == {100: 0, 102: 2, 103: 1}


@pytest.mark.parametrize(
    "stranger",
    [sound(1, **{record_names.EXAMPLES: 9}), sound(0), sound(7), {}, None],
    ids=["other images", "taken", "none", "empty", "silent"],
)
def test_a_stranger_takes_nothing_else_and_is_asked_once(stranger: dict[str, Any] | None) -> None:
    """Neither with other images, nor the partition of a node that is there."""
    partition = {100: 0, 101: 2}
    grid = FakeGrid([sound(0), sound(2), stranger])
    registry = back(grid, partition)
    assert (registry.partitions, grid.asked) == (partition, [102])
    assert back(grid, partition, registry).partitions == partition
    assert grid.asked == [102]


def test_whose_partition_was_anothers_is_asked_again_when_it_is_free() -> None:
    """103 is the node of partition 2 under a new number, asked while 102 still counts as there."""
    grid = FakeGrid([sound(0), sound(1), sound(2), sound(2)], away=[101])
    registry = back(grid, {100: 0, 101: 1, 102: 2})
    assert registry.partitions == {100: 0, 101: 1, 102: 2}
    grid.away = {102}
    assert back(grid, {}, registry).partitions == {100: 0, 101: 1, 103: 2}
    assert grid.asked == [103, 103]


def test_a_node_that_is_back_has_its_partition_again() -> None:
    """Another took it while it was away, and goes on as a stranger until that one is gone."""
    grid = FakeGrid([sound(0), sound(1), sound(2)])
    met = register_nodes(grid, 3)  # type: ignore[arg-type]
    grid.answers[103], grid.away = sound(1), {101}
    taken = back(grid, {}, met)
    assert taken.partitions == {100: 0, 102: 2, 103: 1}
    grid.away = set()
    registry = back(grid, {}, taken)
    assert registry.partitions == {100: 0, 101: 1, 102: 2}
    assert back(grid, {}, registry) == registry
    grid.away = {101}
    assert back(grid, {}, registry).partitions == {100: 0, 102: 2, 103: 1}
    assert grid.asked == [100, 101, 102, 103, 103]


def test_nobody_is_asked_while_all_partitions_have_their_nodes() -> None:
    """A stranger costs no message then, nor does a known node that is away for a while."""
    grid = FakeGrid([sound(0), sound(1), sound(2), sound(1)])
    assert back(grid, {100: 0, 101: 1, 102: 2}).partitions == {100: 0, 101: 1, 102: 2}
    away = FakeGrid([sound(0), sound(1), sound(2)], away=[101])
    assert back(away, {100: 0, 101: 1, 102: 2}).partitions == {100: 0, 101: 1, 102: 2}
    assert grid.asked == away.asked == []


def test_whose_images_they_are_is_part_of_the_saved_state(tmp_path: Path) -> None:
    """A state without it, or with something else in its place, is damaged."""
    fresh = init_server_state(torch.zeros(3))
    run_folder.write_state(tmp_path, fresh._replace(examples=KNOWN, has_node_data=True))
    assert run_folder.read_state(tmp_path, fresh).has_node_data is True
    path = tmp_path / "state" / "server.safetensors"
    tensors, metadata = read_tensors(path)
    for text, expected in (("0", False), (None, None), ("yes", None)):
        without = {key: value for key, value in metadata.items() if key != "own"}
        write_tensors(path, tensors, without | ({"own": text} if text else {}))
        if expected is None:
            with pytest.raises(RunError, match=r"server\.safetensors is damaged"):
                run_folder.read_state(tmp_path, fresh)
        else:
            state = run_folder.read_state(tmp_path, fresh)
            assert (state.has_node_data, state.examples) == (expected, KNOWN)


def test_a_node_answers_once_and_only_if_it_was_asked() -> None:
    """A second partition for one node, or one for a stranger, would take an honest node's place."""

    class TalkativeGrid(FakeGrid):
        """Node 100 answers for partition 1 as well, and a stranger for partition 2."""

        def send_and_receive(self, messages: list[Message], timeout: float) -> list[Message]:
            """Return the answers, two of them too many."""
            replies = []
            for message, partition in ((messages[0], 0), (messages[0], 1), (messages[0], 2)):
                self.answers[100] = sound(partition)
                replies += super().send_and_receive([message], timeout)
            replies[2].metadata.__dict__["_src_node_id"] = 555
            self.answers[100] = sound(0)
            return replies + super().send_and_receive(messages[1:], timeout)

    registry = register_nodes(TalkativeGrid([sound(0), sound(1), sound(2)]), 3)  # type: ignore[arg-type]
    assert registry.partitions == {100: 0, 101: 1, 102: 2}
