"""The ledger between processes that are killed, that race, and that may not write."""

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.fedcel.privacy.ledger.ledger_processes import KILLS, forked, main

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    """Return what the processes tell, of a folder that any user may enter."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        folder.chmod(0o755)
        _, status = os.waitpid(forked(lambda: main(folder)), 0)
        assert status == 0
        loaded: dict[str, Any] = json.loads((folder / "outcomes.json").read_text())
        (folder / "read-only").chmod(0o755)
    return loaded


def test_kill_at_any_moment(outcomes: dict[str, Any]) -> None:
    """After each of many kills the file opens, is sound, and has charged for every answer told."""
    rows = outcomes["crash"]
    assert len(rows) == KILLS
    for told, spent, answers, problems in rows:
        assert problems == []
        assert spent == answers  # a micro-epsilon each: no charge without its answer, none twice
        assert told <= answers <= told + 6 * KILLS  # a kill keeps at most a group of 3 from each
    assert rows[-1][0] > 50


def test_the_last_micro_epsilon_is_won_once(outcomes: dict[str, Any]) -> None:
    """Of 8 processes that also make the file at once."""
    assert outcomes["race"] == [["Receipt"] + ["Refusal"] * 7, []]


def test_a_full_disk(outcomes: dict[str, Any]) -> None:
    """The charge is refused with the reason, what was booked stays, and space is used again."""
    reason, booked, spent, problems, probes = outcomes["small"]
    assert "check its space" in probes[0] and not probes[1]  # the probe finds it, and its end
    assert "check its space" in reason
    assert booked > 64
    assert (spent, problems) == (booked + 1, [])


def test_a_read_only_file(outcomes: dict[str, Any]) -> None:
    """It is refused when it is opened, before anything is asked."""
    reason = outcomes["read-only"]
    assert "make the file and its folder writable" in reason or "opened for writing" in reason
