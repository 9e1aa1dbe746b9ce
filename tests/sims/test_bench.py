"""A bench: cells that fail, processes that end, rows of sound files only."""

import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from fedcel.errors import DivergedError, RunError
from fedcel.settings import Scalar
from sims import scenario
from sims.bench import measured
from sims.processes import work

ROOT = Path(__file__).parents[2]
BENCH = importlib.import_module("sims.bench")  # `sims.bench` itself is the function
QUICK: dict[str, Scalar] = {
    "engine": "loop",
    "rounds": 5,
    "local.steps": 3,
    "cel.warm-up": 1,
    "attack.names": "optimal",
    "attack.seeds": 1,
    "privacy.epsilons": "4",
}


def cells(folder: Path, **more: Scalar) -> tuple[scenario.Scenario, list[scenario.Cell]]:
    """Return a scenario of three cells, the second of which diverges."""
    path = folder / "s.toml"
    path.write_text(
        "[[variant]]\nname = 'a'\n[[variant]]\nname = 'b'\nsettings = { local = { rate = 1e38 } }\n"
        "[[variant]]\nname = 'c'\n"
    )
    plan = scenario.read(str(path))
    return plan, scenario.cells(plan, QUICK | more)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_diverged_cell_does_not_keep_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], jobs: int
) -> None:
    """They are trained and reported; then it is named."""
    plan, found = cells(tmp_path)
    out = tmp_path / "b"
    with pytest.raises(DivergedError, match=r"^b-0 failed.*report\.html"):
        BENCH.bench(plan, found, out, jobs)
    assert "b-0 failed: the model is not finite" in capsys.readouterr().err
    rows = json.loads((out / "bench.json").read_text())
    assert [row["variant"] for row in rows] == ["a", "c"]
    assert all(row["worst-attack"] is None and row["mse"] is None for row in rows)
    assert all(row["undefended"] and not row["anchored"] for row in rows)
    assert (out / "report.html").exists()


def test_no_cell_is_finished(tmp_path: Path) -> None:
    """There is nothing to report, and the reason is the divergence."""
    plan, found = cells(tmp_path)
    with pytest.raises(DivergedError, match="b-0 failed.*no cell is finished"):
        BENCH.bench(plan, found[1:2], tmp_path / "b")


def test_an_error_ends_the_other_processes(tmp_path: Path) -> None:
    """Wrong input in one cell: the queue is dropped, no process trains on."""
    _, (cell, *_) = cells(tmp_path, rounds=3000)
    broken = cell._replace(
        settings=cell.settings.model_copy(update={"clients": 1790}), variant=scenario.plain("x")
    )
    before = set(multiprocessing.active_children())
    todo = [cell, broken, cell._replace(variant=scenario.plain("y"))]
    with pytest.raises(Exception, match="client"):
        list(work(partial(BENCH.attempt, folder=tmp_path), todo, 2))
    assert set(multiprocessing.active_children()) == before
    assert not (tmp_path / "runs" / "y-0").exists()


def test_ctrl_c_ends_the_other_processes(tmp_path: Path) -> None:
    """SIGINT to the first process alone: exit 130 at once, and no cell goes on."""
    out = tmp_path / "b"
    command = [sys.executable, "-m", "sims", "bench", "digits", "--engine", "loop", "--jobs", "2"]
    command += ["--set", "rounds=100000", "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    limit = time.monotonic() + 90
    while len(events := list(out.glob("runs/*/events.jsonl"))) < 2:
        assert time.monotonic() < limit, "no two cells at work within 90 s"
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "leaked" not in said
    assert "same command again" in said
    assert said.startswith(f"run: {out}\n")
    sizes = [path.stat().st_size for path in events]
    time.sleep(1.0)  # some twenty rounds
    assert [path.stat().st_size for path in events] == sizes
    assert len(list(out.glob("runs/*"))) == 2


@pytest.mark.parametrize(
    ("result", "attacks", "words"),
    [
        ({}, [], "no 'accuracy'"),
        ([], [], "are expected"),
        (None, [{"attack": "decoder", "mse": 0.1}], "no 'psnr'"),
        (None, [{"attack": "decoder", "mse": None}], "None"),
        (None, [1], "int"),
    ],
)
def test_a_damaged_file_is_named(
    tmp_path: Path, result: object, attacks: object, words: str
) -> None:
    """Not a KeyError."""
    sound = dict.fromkeys(BENCH.COPIED, 1.0)
    (tmp_path / "attacks.json").write_text(json.dumps([]))
    (tmp_path / "result.json").write_text(json.dumps(sound))
    (tmp_path / BENCH.COST).write_text('{"train-step-ratio": 2.5}')
    untrained = dict.fromkeys(("worst-attack", *BENCH.REBUILT))
    assert measured(tmp_path) == sound | untrained | {"train-step-ratio": 2.5}
    (tmp_path / "result.json").write_text(json.dumps(sound if result is None else result))
    (tmp_path / "attacks.json").write_text(json.dumps(attacks))
    with pytest.raises(RunError, match=words):
        measured(tmp_path)


def test_refused_cells_leave_the_bench_as_it_was(tmp_path: Path) -> None:
    """The scenario in the folder is that of the runs beside it."""
    plan, found = cells(tmp_path)
    BENCH.bench(plan, found[:1], tmp_path / "b")
    before = (tmp_path / "b" / "scenario.toml").read_text()
    _, other = cells(tmp_path, rounds=6)
    plan.path.write_text("# another\n" + plan.path.read_text())
    with pytest.raises(RunError, match="other settings"):
        BENCH.bench(plan, other[:1], tmp_path / "b")
    assert (tmp_path / "b" / "scenario.toml").read_text() == before


def test_what_only_some_runs_have_is_copied(tmp_path: Path) -> None:
    """From the result, and the attention of the last round in which it acted."""
    sound = dict.fromkeys((*BENCH.COPIED, "answer-bits", "within-class-spread"), 0.5)
    (tmp_path / "attacks.json").write_text("[]")
    (tmp_path / BENCH.COST).write_text('{"train-step-ratio": 2.5}')
    (tmp_path / "result.json").write_text(json.dumps(sound | {"seconds": 3}))
    (tmp_path / "events.jsonl").write_text(
        '{"attention-share": 0.1}\n{"attention-share": 0.7}\n{}\n'
    )
    found = measured(tmp_path)
    assert found.items() >= (sound | {"attention-share": 0.7}).items()
    assert "seconds" not in found and "bits-cap" not in found
    (tmp_path / "events.jsonl").write_text("{")
    with pytest.raises(RunError, match="damaged"):
        measured(tmp_path)


def test_a_sweep_is_anchored_where_the_first_undefended_row_is(tmp_path: Path) -> None:
    """The seed's own; a row that sweeps is no reference."""
    path = tmp_path / "s.toml"
    path.write_text(
        "[bench]\nseeds = '0,1'\n[[variant]]\nname = 'a'\n"
        "[[variant]]\nname = 'b'\nstrength-key = 'cel.weight'\nstrengths = '1'\n"
        "settings = { cel = { kind = 'plain' } }\n"
        "[[variant]]\nname = 'c'\nstrength-key = 'net.noise'\nstrengths = '0.5'\n"
    )
    found = scenario.cells(scenario.read(str(path)), QUICK)
    for cell in found:
        place = tmp_path / "runs" / cell.name
        place.mkdir(parents=True)
        (place / "attacks.json").write_text("[]")
        (place / BENCH.COST).write_text('{"train-step-ratio": 2.5}')
        (place / "result.json").write_text(json.dumps(dict.fromkeys(BENCH.COPIED, 1.0)))
    told = {(r["variant"], r["undefended"], r["anchored"]) for r in BENCH.rows(found, tmp_path)}
    assert told == {("a", True, False), ("b", False, True), ("c", False, False)}
    alone = BENCH.rows(found[2:], tmp_path)
    assert not any(row["anchored"] for row in alone)
