"""A bench: cells that fail, processes that end, rows of sound files only."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch

from fedcel.attacks import REVISION, AttackId, AttackOutcome, AttackRow
from fedcel.errors import DivergedError, RunError, SettingsError
from fedcel.settings import AttackSettings, Scalar
from sims.attacking import attack_run
from sims.bench import run_bench, scenario
from sims.bench.run_cell import run_cell
from sims.parallel_jobs import run_items
from sims.results.attack_results import (
    is_replaced_by,
    lacking_settings,
    read_attack_rows,
    read_pictures,
    requested_results,
    result_paths,
    write_result,
)
from sims.results.bench_rows import write_bench_rows
from tests.sims.attack_files import load_rows, save_rows
from tests.sims.results.made import make_row
from tests.sims.small import QUICK

ROOT = Path(__file__).parents[3]


def cells(folder: Path, **more: Scalar) -> tuple[scenario.Scenario, list[scenario.Cell]]:
    """Return a scenario of three cells, the second of which diverges."""
    path = folder / "s.toml"
    path.write_text(
        "[[variant]]\nname = 'a'\n[[variant]]\nname = 'b'\nsettings = { local = { rate = 1e38 } }\n"
        "[[variant]]\nname = 'c'\n"
    )
    plan = scenario.read_scenario(str(path))
    return plan, scenario.list_cells(plan, QUICK | more)


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_diverged_cell_does_not_keep_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], jobs: int
) -> None:
    """They are trained and reported; then it is named."""
    plan, found = cells(tmp_path)
    out = tmp_path / "b"
    with pytest.raises(DivergedError, match=r"^b-0 failed.*report\.html"):
        run_bench.run_bench(plan, found, out, jobs)
    assert "b-0 failed: the model is not finite" in capsys.readouterr().err
    rows = json.loads((out / "bench.json").read_text())
    assert [row["variant"] for row in rows] == ["a", "c"]
    assert all(row["worst-attack"] is None and row["mse"] is None for row in rows)
    assert all(row["attacks"] == [] and row["failed-attacks"] == [] for row in rows)
    assert all(row["undefended"] and not row["anchored"] for row in rows)
    failed = json.loads((out / "failed.json").read_text())
    assert [one["cell"] for one in failed] == ["b-0"]
    assert failed[0]["reason"].startswith("the model is not finite")
    page = (out / "report.html").read_text()
    assert "in no number, table or figure: b-0 (the model is not finite" in page
    run_bench.run_bench(plan, [found[0], found[2]], out)
    assert json.loads((out / "failed.json").read_text()) == failed
    assert "b-0" in (out / "report.html").read_text()
    plan.path.write_text(plan.path.read_text().replace("'b'", "'mended'"))
    run_bench.run_bench(scenario.read_scenario(str(plan.path)), [found[0], found[2]], out)
    assert json.loads((out / "failed.json").read_text()) == []
    assert "b-0" not in (out / "report.html").read_text()


def test_no_cell_is_finished(tmp_path: Path) -> None:
    """There is nothing to report, and the reason is the divergence."""
    plan, found = cells(tmp_path)
    with pytest.raises(DivergedError, match="b-0 failed.*no cell is finished"):
        run_bench.run_bench(plan, found[1:2], tmp_path / "b")
    assert "b-0" in (tmp_path / "b" / "failed.json").read_text()


def test_a_sweep_that_is_overridden_is_refused(tmp_path: Path) -> None:
    """All strengths would be one; what no variant sweeps may be overridden."""
    path = tmp_path / "s.toml"
    path.write_text(
        "[[variant]]\nname = 'plain'\nstrength-key = 'cel.weight'\nstrengths = '0.3,1'\n"
        "settings = { cel = { kind = 'plain' } }\n"
    )
    plan = scenario.read_scenario(str(path))
    fixed = scenario.list_cells(plan, QUICK | {"cel.weight": 0.5})
    with pytest.raises(SettingsError, match=r"cel.weight is 0.5.*'plain' sweeps it \(0.3, 1\)"):
        run_bench.run_bench(plan, fixed, tmp_path / "b")
    assert not (tmp_path / "b").exists()
    scenario.refuse_fixed_sweeps(scenario.list_cells(plan, QUICK | {"net.noise": 0.5}))


@pytest.mark.long
def test_an_error_ends_the_other_processes(tmp_path: Path) -> None:
    """Wrong input in one cell: the queue is dropped, no process trains on."""
    _, (cell, *_) = cells(tmp_path, rounds=3000)
    broken = cell._replace(
        settings=cell.settings.model_copy(update={"clients": 1790}),
        variant=scenario.make_plain_variant("x"),
    )
    before = set(multiprocessing.active_children())
    todo = [cell, broken, cell._replace(variant=scenario.make_plain_variant("y"))]
    with pytest.raises(Exception, match="client"):
        list(run_items(partial(run_cell, folder=tmp_path), todo, 2))
    assert set(multiprocessing.active_children()) == before
    assert not (tmp_path / "runs" / "y-0").exists()


@pytest.mark.long
def test_ctrl_c_ends_the_other_processes(tmp_path: Path) -> None:
    """SIGINT to the first process alone: exit 130 at once, and no cell goes on."""
    out = tmp_path / "b"
    command = [sys.executable, "-m", "sims", "bench", "digits", "--engine", "local", "--jobs", "2"]
    command += ["--set", "rounds=100000", "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    limit = time.monotonic() + 300
    while len(events := list(out.glob("runs/*/events.jsonl"))) < 2:
        assert time.monotonic() < limit, "no two cells at work within five minutes"
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "leaked" not in said
    assert "same command again" in said
    assert f"run: {out}\n" in said
    sizes = [path.stat().st_size for path in events]
    time.sleep(1.0)  # some twenty rounds
    assert [path.stat().st_size for path in events] == sizes
    assert len(list(out.glob("runs/*"))) == 2


DECODER = AttackSettings(names="decoder")
SOUND = dict.fromkeys(
    (
        *("accuracy", "bits-beyond-label", "information-bits", "identification-optimal"),
        *("certificate-bits", "candidates"),
    ),
    1.0,
)
"""What every result.json has."""


def finished(folder: Path) -> tuple[scenario.Cell, Path]:
    """Return a cell that was trained, and attacked with a decoder, as its files say."""
    _, (cell, *_) = cells(folder, **{"attack.names": "decoder"})
    place = folder / "b" / "runs" / cell.name
    attacked(place, [], cell.settings.attack)
    (place / "result.json").write_text(json.dumps(SOUND))
    return cell, place


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("result.json", "{}", r"result\.json is damaged: accuracy: Field required"),
        ("result.json", "[]", r"result\.json is damaged: the file: .*object"),
        ("cost.json", "{}", r"cost\.json is damaged: train-step-ratio: Field required"),
        ("events.jsonl", "{", r"events\.jsonl is damaged: line 1 is no round"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, text: str, words: str) -> None:
    """Not a KeyError."""
    cell, place = finished(tmp_path)
    (row,) = run_bench.make_rows([cell], tmp_path / "b")
    assert row.to_json().items() >= (SOUND | {"train-step-ratio": 2.5, "mse": None}).items()
    (place / name).write_text(text)
    with pytest.raises(RunError, match=words):
        run_bench.make_rows([cell], tmp_path / "b")


def attacked(place: Path, rows: Sequence[object], how: AttackSettings = DECODER) -> None:
    """Write the files of a cell that was attacked, all rows with the same few keys."""
    place.mkdir(parents=True, exist_ok=True)
    for path in result_paths(place, how).values():
        save_rows(path, rows)
    (place / "cost.json").write_text('{"train-step-ratio": 2.5}')


def test_an_attack_that_one_cell_alone_has_met_does_not_count(tmp_path: Path) -> None:
    """Ten times the budget is not what the others had to stand; it is among the row's attacks."""
    rows = [make_row(variant, run=f"runs/{variant}") for variant in "ab"]
    decoder: dict[str, object] = {"attack": "decoder", "budget": 1.0, "mse": 0.5}
    for row in rows:
        attacked(tmp_path / row.run, [decoder])
    how = AttackSettings(names="decoder", budget=10.0)
    larger = decoder | {"mse": 0.01, "budget": 10.0}
    write_result(
        tmp_path / "runs" / "a",
        how,
        AttackOutcome([larger], {"targets": torch.zeros(1, 1, 2, 2)}, {}),
    )
    write_bench_rows(tmp_path, rows)
    first, second = json.loads((tmp_path / "bench.json").read_text())
    assert [(row["worst-attack"], row["mse"]) for row in (first, second)] == [("decoder", 0.5)] * 2
    assert [attack["budget"] for attack in first["attacks"]] == [1.0, 10.0]


@pytest.mark.long
def test_a_cell_is_attacked_again_where_its_rows_are_gone(tmp_path: Path) -> None:
    """Not where other attacks came to them; the net is not trained again."""
    plan, (cell, *_) = cells(tmp_path)
    out = tmp_path / "b"
    place, how = out / "runs" / cell.name, cell.settings.attack
    run_bench.run_bench(plan, [cell], out)
    first = requested_results(place, how)
    (own,) = result_paths(place, how).values()
    paths = (place / "result.json", place / "cost.json", own)
    stamps = [path.stat().st_mtime_ns for path in paths]
    more = how.model_copy(update={"names": "decoder", "budget": 0.02})
    attack_run(place, more)
    assert requested_results(place, how) == first
    (result,) = requested_results(place, more) or []
    assert [row.mse for row in result.rows] != []
    run_bench.run_bench(plan, [cell], out)
    assert own.stat().st_mtime_ns == stamps[-1]
    own.unlink()
    assert requested_results(place, how) is None
    assert run_bench.make_rows([cell], out) == []
    run_bench.run_bench(plan, [cell], out)
    assert [row.attack for row in read_attack_rows(place)] == ["decoder", "optimal", "optimal"]
    assert [path.stat().st_mtime_ns for path in paths[:2]] == stamps[:2]


def collect(
    rows: Sequence[dict[str, object]], pictures: dict[str, torch.Tensor] | None = None
) -> AttackOutcome:
    """Return these rows and pictures as an attack's."""
    return AttackOutcome([AttackRow.model_validate(row) for row in rows], pictures or {}, {})


def test_what_an_attack_leaves_of_earlier_ones(tmp_path: Path) -> None:
    """Other rows, and each attack's best images; what was skipped, or run so before, gives way."""
    say = {"observation": "o", "knowledge": "k"}
    one, two = ({"attack": "a", **say, "budget": budget, "mse": 0.1} for budget in (1.0, 2.0))
    skipped: dict[str, object] = {"attack": "b", **say, "skipped": "no"}
    shown = {name: torch.full((2, 1, 2, 2), 0.1) for name in ("targets", "a")}
    for names, budget, rows in (("a", 1.0, [one]), ("a", 2.0, [two]), ("b", 1.0, [skipped])):
        write_result(tmp_path, AttackSettings(names=names, budget=budget), collect(rows, shown))
    worse = two | {"mse": 0.2}
    other: dict[str, object] = {"attack": "b", **say, "budget": 2.0, "mse": 0.2}
    made = shown | {"a": shown["a"] + 0.5, "b": shown["a"] + 0.4}
    write_result(tmp_path, AttackSettings(names="a", budget=2.0, seeds=1), collect([worse], made))
    write_result(tmp_path, AttackSettings(names="b", budget=2.0), collect([other], made))
    assert [row.to_json() for row in read_attack_rows(tmp_path)] == [one, worse, other]
    both = AttackSettings(names="a, b", budget=1.0)
    requested = requested_results(tmp_path, both) or []
    assert [row.to_json() for result in requested for row in result.rows] == [one, skipped]
    assert lacking_settings(tmp_path, both) is None
    assert requested_results(tmp_path, AttackSettings(names="a,c", budget=1.0)) is None
    assert lacking_settings(tmp_path, AttackSettings(names="a,c")) == AttackSettings(names="c")
    kept = read_pictures(tmp_path)
    assert torch.equal(kept["a"], shown["a"]) and torch.equal(kept["b"], made["b"])
    more = {name: torch.full((3, 1, 2, 2), 0.3) for name in ("targets", "c")}
    write_result(tmp_path, AttackSettings(names="c"), collect([], more))
    assert read_pictures(tmp_path).keys() == {"targets", "c"}


def test_results_of_an_earlier_revision_are_made_again(tmp_path: Path) -> None:
    """Till then they count; a damaged one is named."""
    how = AttackSettings(names="decoder")
    (path,) = result_paths(tmp_path, how).values()
    save_rows(path, [{"attack": "decoder"}])
    assert lacking_settings(tmp_path, how) is None
    earlier = json.loads(path.read_text()) | {"revision": REVISION - 1}
    path.write_text(json.dumps(earlier))
    (result,) = requested_results(tmp_path, how) or []
    assert [row.to_json() for row in result.rows] == load_rows(path)
    assert lacking_settings(tmp_path, how) == how
    path.write_text('{"settings": 1}')
    with pytest.raises(RunError, match=r"decoder-\w+\.json is damaged"):
        requested_results(tmp_path, how)


def test_a_row_that_says_less_gives_way() -> None:
    """One of before knowledge and targets were told stands for the same attack, no other does."""
    old, new = AttackId("decoder", "o"), AttackId("decoder", "o", "held-out", 1.0, 10, 10)
    assert is_replaced_by(old, new) and is_replaced_by(new, new) and not is_replaced_by(new, old)
    for key, value in (("targets", 20), ("budget", 4.0), ("knowledge", "x"), ("candidates", 5)):
        assert not is_replaced_by(new._replace(**{key: value}), new)


def test_refused_cells_leave_the_bench_as_it_was(tmp_path: Path) -> None:
    """The scenario in the folder is that of the runs beside it."""
    plan, found = cells(tmp_path)
    run_bench.run_bench(plan, found[:1], tmp_path / "b")
    before = (tmp_path / "b" / "scenario.toml").read_text()
    _, other = cells(tmp_path, rounds=6)
    plan.path.write_text("# another\n" + plan.path.read_text())
    with pytest.raises(RunError, match="other settings"):
        run_bench.run_bench(plan, other[:1], tmp_path / "b")
    assert (tmp_path / "b" / "scenario.toml").read_text() == before


def test_what_only_some_runs_have_is_copied(tmp_path: Path) -> None:
    """From the result, and the attention of the last round in which it acted."""
    cell, place = finished(tmp_path)
    more = {"answer-bits": 0.5, "within-class-spread": 0.5}
    (place / "result.json").write_text(json.dumps(SOUND | more | {"seconds": 3}))
    shares = ('"attention-share": 0.1', '"attention-share": 0.7', '"seconds": 1')
    lines = (f'{{"round": {number}, {text}}}' for number, text in enumerate(shares))
    (place / "events.jsonl").write_text("\n".join(lines))
    row = run_bench.make_rows([cell], tmp_path / "b")[0].to_json()
    assert row.items() >= (SOUND | more | {"attention-share": 0.7}).items()
    assert "seconds" not in row and "bits-cap" not in row


def test_a_sweep_is_anchored_where_the_first_undefended_row_is(tmp_path: Path) -> None:
    """The seed's own; a row that sweeps is no reference."""
    path = tmp_path / "s.toml"
    path.write_text(
        "[bench]\nseeds = '0,1'\n[[variant]]\nname = 'a'\n"
        "[[variant]]\nname = 'b'\nstrength-key = 'cel.weight'\nstrengths = '1'\n"
        "settings = { cel = { kind = 'plain' } }\n"
        "[[variant]]\nname = 'c'\nstrength-key = 'net.noise'\nstrengths = '0.5'\n"
    )
    found = scenario.list_cells(scenario.read_scenario(str(path)), {"engine": "local"})
    for cell in found:
        place = tmp_path / "runs" / cell.name
        attacked(place, [], cell.settings.attack)
        (place / "result.json").write_text(json.dumps(SOUND))
    rows = run_bench.make_rows(found, tmp_path)
    assert {(row.variant, row.undefended, row.anchored) for row in rows} == {
        ("a", True, False),
        ("b", False, True),
        ("c", False, False),
    }
    alone = run_bench.make_rows(found[2:], tmp_path)
    assert not any(row.anchored for row in alone)
