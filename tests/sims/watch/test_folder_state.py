"""How far a run or a bench is, by its folder alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedcel.runs import find_writer
from fedcel.runs.folder_lock import LOCK
from sims.results.records import BenchPlan, RejectedReply, RoundEvent
from sims.watch import describe_bench, describe_run, is_bench
from sims.watch.folder_state import MAX_POINTS, count_left_out, estimate_seconds
from tests.sims.watch.conftest import REASONS, copy_run, write_into


def test_a_run_that_goes_on_has_its_last_round_and_the_time_left(
    trained: Path, tmp_path: Path
) -> None:
    """Scores are those of its log; the pace is the middle one of the rounds."""
    folder = copy_run(trained, tmp_path / "run", rounds=5)
    with write_into(folder):
        state = describe_run(folder)
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert (state["phase"], state["round"], state["rounds"]) == ("training", 5, 6)
    pace = sorted(event["seconds"] for event in events)[2]
    assert state["seconds-left"] == pytest.approx(pace)
    assert state["latest"]["accuracy"] == events[-1]["accuracy"]
    assert state["latest"]["bits-round"] == 4
    assert state["latest"]["bits"] == events[3]["bits-beyond-label"]
    assert [number for number, _ in state["curves"]["bits"]] == [2, 4]
    assert state["curves"]["spread"][-1] == (5, events[-1]["within-class-spread"])
    assert [row["round"] for row in state["rows"]] == [5, 4, 3, 2, 1]
    assert state["result"] is None and state["report"] is None
    json.dumps(state, allow_nan=False)


def test_phases_follow_the_files_and_the_writer(trained: Path, tmp_path: Path) -> None:
    """Nobody writes: stopped. Somebody does, and the rounds are done: the leak is measured."""
    folder = copy_run(trained, tmp_path / "run", rounds=5)
    assert describe_run(folder)["phase"] == "stopped"
    shorter = (folder / "settings.toml").read_text().replace("rounds = 6", "rounds = 5")
    (folder / "settings.toml").write_text(shorter)
    with write_into(folder):
        assert describe_run(folder)["phase"] == "measuring"
    state = describe_run(copy_run(trained, tmp_path / "finished"))
    result = json.loads((trained / "result.json").read_text())
    assert state["phase"] == "finished" and state["seconds-left"] is None
    assert state["result"]["bits"] == result["bits-beyond-label"]


def test_clients_left_out_are_counted_by_reason(trained: Path, tmp_path: Path) -> None:
    """Whom, how often, and when last; reasons that differ in a number are one kind."""
    state = describe_run(copy_run(trained, tmp_path / "run"))
    assert state["left-out"] == [
        {"reason": reason, "count": 2, "clients": [str(client)], "last": 6}
        for client, reason in enumerate(REASONS)
    ]
    norms = [(4, 0, "its norm is 7.1, at most 3"), (5, 2, "its norm is 1e+06, at most 3")]
    events = [
        RoundEvent(round=number, rejected=(RejectedReply(client=client, reason=reason),))
        for number, client, reason in norms
    ]
    assert count_left_out(events) == [
        {"reason": norms[1][2], "count": 2, "clients": ["0", "2"], "last": 5}
    ]
    assert state["curves"]["kept"] == [(1, 1.0), (2, 1.0), (3, 0.25), (4, 1.0), (5, 1.0), (6, 0.25)]


def test_a_long_run_has_as_many_points_as_a_screen(trained: Path, tmp_path: Path) -> None:
    """The last round is one of them, however many there are."""
    folder = copy_run(trained, tmp_path / "run")
    line = json.loads((folder / "events.jsonl").read_text().splitlines()[0])
    lines = [json.dumps(line | {"round": number}) for number in range(1, 1502)]
    (folder / "events.jsonl").write_text("\n".join(lines))
    points = describe_run(folder)["curves"]["accuracy"]
    assert points[-1][0] == 1501 and MAX_POINTS / 2 < len(points) <= MAX_POINTS


def test_a_writer_that_was_killed_is_none(tmp_path: Path) -> None:
    """Its file stays; on another machine nobody knows."""
    with write_into(tmp_path):
        writer = find_writer(tmp_path)
        assert writer is not None and writer.process == os.getpid()
    assert find_writer(tmp_path) is None
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    holder = {"pid": ended.pid, "host": os.uname().nodename, "since": "today"}
    (tmp_path / LOCK).write_text(json.dumps(holder))
    assert find_writer(tmp_path) is None
    (tmp_path / LOCK).write_text(json.dumps(holder | {"host": "elsewhere"}))
    assert find_writer(tmp_path) is not None
    (tmp_path / LOCK).write_text("")
    assert find_writer(tmp_path) is None


ROW = {"variant": "none", "seed": 0, "run": "runs/none-0", "accuracy": 0.9, "attacks": []}
ROW |= {"undefended": True}


@pytest.fixture
def bench(trained: Path, tmp_path: Path) -> Path:
    """Four cells: finished, failed, in training, not begun; and a fifth, trained before."""
    folder = tmp_path / "bench"
    copy_run(trained, folder / "runs" / "none-0")
    copy_run(trained, folder / "runs" / "old-0")
    copy_run(trained, folder / "runs" / "loss-0", rounds=2)
    (folder / "scenario.toml").write_text('title = "Four"')
    (folder / "bench.json").write_text(json.dumps([ROW]))
    reason = {"cell": "bad-0", "reason": "net.name is wrong"}
    (folder / "failed.json").write_text(json.dumps([reason]))
    names = ["none-0", "bad-0", "loss-0", "loss-1"]
    plan = {"began": 1000.0, "cells": names, "missing": names[1:], "jobs": 1}
    (folder / "plan.json").write_text(json.dumps(plan))
    return folder


def test_cells_are_told_apart(bench: Path) -> None:
    """In the order of the scenario, each with its state; scores where it is trained."""
    assert is_bench(bench) and not is_bench(bench / "runs" / "none-0")
    with write_into(bench), write_into(bench / "runs" / "loss-0"):
        state = describe_bench(bench)
    phases = {cell["name"]: cell["phase"] for cell in state["cells"]}
    assert phases == {
        "none-0": "finished",
        "bad-0": "failed",
        "loss-0": "training",
        "loss-1": "waiting",
        "old-0": "attacking",
    }
    assert list(phases) == ["none-0", "bad-0", "loss-0", "loss-1", "old-0"]
    assert (state["title"], state["phase"], state["done"]) == ("Four", "training", 2)
    assert (state["done-now"], state["left"]) == (1, 2)
    cells = {cell["name"]: cell for cell in state["cells"]}
    assert cells["loss-0"]["round"] == 2 and "accuracy" not in cells["loss-0"]
    assert cells["bad-0"]["reason"] == "net.name is wrong"
    assert cells["none-0"]["accuracy"] > 0
    json.dumps(state, allow_nan=False)


def test_a_bench_that_was_stopped_says_so(bench: Path) -> None:
    """Nobody writes into it, and there are cells left."""
    state = describe_bench(bench)
    assert state["phase"] == "stopped" and state["seconds-left"] is None and state["left"] == 3
    assert {cell["name"]: cell["phase"] for cell in state["cells"]}["loss-0"] == "stopped"


def test_the_time_left_is_that_of_cells_of_this_call() -> None:
    """Two of six in a minute: four take two; none before the first has ended."""
    names = tuple("abcdef")
    plan = BenchPlan(began=1000.0, cells=names, missing=names, jobs=2)
    assert estimate_seconds(plan, 2, 1060.0) == pytest.approx(120.0)
    assert estimate_seconds(plan, 0, 1060.0) is None
