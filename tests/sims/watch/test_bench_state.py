"""How far a bench is: cells done, cells left, and the time that they take."""

import json
from pathlib import Path

import pytest

from sims.results.records import BenchPlan
from sims.watch import describe_bench, is_bench
from sims.watch.bench_state import estimate_seconds
from tests.sims.watch.conftest import copy_run, write_into

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
