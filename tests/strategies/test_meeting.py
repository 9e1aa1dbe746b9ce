"""Which node holds what: before round 1, after a resume, and when one comes later."""

import math
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord

from fedcel import wire
from fedcel.errors import SettingsError
from strategies import meeting
from strategies.meeting import Met, meet, rejoined
from tests.strategies.grid import FakeGrid

KNOWN = {0: 10, 1: 11, 2: 12}


def sound(k: int, **change: Any) -> dict[str, Any]:
    """Return an honest node's answer, or one that differs."""
    return {wire.EXAMPLES: 10 + k, wire.PARTITION: k} | change


def back(grid: FakeGrid, partition: dict[int, int], own: bool = False) -> Met:
    """Return who holds what after a round began."""
    met = Met(partition, KNOWN, own)
    return rejoined(grid, met, ConfigRecord({wire.ROUND: 4}))  # type: ignore[arg-type]


def test_meeting_the_nodes_learns_partitions_and_counts() -> None:
    """Which node holds what."""
    grid = FakeGrid([sound(2), sound(0), sound(1)])
    partition, examples, own = meet(grid, 3)  # type: ignore[arg-type]
    assert partition == {100: 2, 101: 0, 102: 1}
    assert (examples, own) == ({0: 10, 1: 11, 2: 12}, False)


@pytest.mark.parametrize(
    "bad", [{}, {wire.EXAMPLES: 0, wire.PARTITION: 2}, {wire.EXAMPLES: 5, wire.PARTITION: 0}]
)
def test_a_malformed_or_doubled_node_cannot_take_part(bad: dict[str, Any]) -> None:
    """With too few left, the run does not start and says so."""
    grid = FakeGrid([sound(0), sound(1), bad])
    with pytest.raises(SettingsError, match="2 partitions answered, clients is 3"):
        meet(grid, 3)  # type: ignore[arg-type]


def test_a_thousand_hostile_answers_do_not_keep_three_honest_nodes_out() -> None:
    """Claims that are no numbers, of partitions there are none of, of too many images."""
    chance = np.random.default_rng(0)
    holders = [-1, 3, 2**63, math.nan, 1.0, [1], 10**18]
    counts = [0, -5, math.inf, 10**8 + 1, 2**63, [10], 10.0]
    hostile: list[dict[str, Any]] = []
    for _ in range(1000):
        holder, count = holders[chance.integers(7)], counts[chance.integers(7)]
        lies = [
            {wire.EXAMPLES: 10, wire.PARTITION: holder},
            {wire.EXAMPLES: count, wire.PARTITION: int(chance.integers(3))},
            {wire.EXAMPLES: count, wire.PARTITION: holder},
            {"other": 1.0},
        ]
        hostile.append(lies[chance.integers(4)])
    grid = FakeGrid([*hostile[:500], *(sound(k) for k in range(3)), *hostile[500:]])
    found = meet(grid, 3)  # type: ignore[arg-type]
    assert found == Met({600: 0, 601: 1, 602: 2}, KNOWN, False)


def test_a_resumed_run_goes_on_without_a_node_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two of three are there; one with other images than before is turned away."""
    monkeypatch.setattr(meeting, "WAIT_SECONDS", 0.0)
    found = meet(FakeGrid([sound(2), sound(0)]), 3, None, KNOWN)  # type: ignore[arg-type]
    assert found.partition == {100: 2, 101: 0}
    assert found.examples == KNOWN
    other = {wire.EXAMPLES: 9, wire.PARTITION: 1}
    found = meet(FakeGrid([sound(2), other, sound(0)]), 3, None, KNOWN)  # type: ignore[arg-type]
    assert found.partition == {100: 2, 102: 0}
    with pytest.raises(SettingsError, match="0 partitions answered"):
        meet(FakeGrid([other]), 3, None, KNOWN)  # type: ignore[arg-type]


def test_who_comes_later_takes_the_partition_that_nobody_has() -> None:
    """Partition 1 had no node since a resume; 102 is a stranger, with the images of 1."""
    grid = FakeGrid([sound(0), sound(2), sound(1, **{wire.OWN: 1})])
    found = back(grid, {100: 0, 101: 2})
    assert found == Met({100: 0, 101: 2, 102: 1}, KNOWN, True)
    assert grid.asked == [102]


def test_a_node_under_a_new_number_replaces_the_one_that_it_was() -> None:
    """101 held partition 1 and is gone; without a key it is another node when it is back."""
    grid = FakeGrid([sound(0), sound(1), sound(2), sound(1)], away=[101])
    assert back(grid, {100: 0, 101: 1, 102: 2}).partition == {100: 0, 102: 2, 103: 1}


@pytest.mark.parametrize(
    "stranger",
    [sound(1, **{wire.EXAMPLES: 9}), sound(0), sound(7), {}],
    ids=["other images", "taken", "none", "silent"],
)
def test_a_stranger_takes_nothing_else(stranger: dict[str, Any]) -> None:
    """Neither with other images, nor the partition of a node that is there."""
    partition = {100: 0, 101: 2}
    assert back(FakeGrid([sound(0), sound(2), stranger]), partition).partition == partition


def test_nobody_is_asked_while_all_partitions_have_their_nodes() -> None:
    """A stranger costs no message then, nor does a known node that is away for a while."""
    grid = FakeGrid([sound(0), sound(1), sound(2), sound(1)])
    assert back(grid, {100: 0, 101: 1, 102: 2}).partition == {100: 0, 101: 1, 102: 2}
    away = FakeGrid([sound(0), sound(1), sound(2)], away=[101])
    assert back(away, {100: 0, 101: 1, 102: 2}).partition == {100: 0, 101: 1, 102: 2}
    assert grid.asked == away.asked == []
