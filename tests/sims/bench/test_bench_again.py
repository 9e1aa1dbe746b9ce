"""A bench called again: finished cells stay in the table, failed attacks are tried again."""

import json
import shutil
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from fedcel import per_image
from fedcel.attacks import FAILURE_PREFIX, AttackOutcome, AttackRow
from fedcel.errors import RunError
from fedcel.runs import run_folder
from fedcel.settings import Scalar
from sims.bench import run_bench, scenario
from sims.results.attack_results import read_attack_rows, write_result
from tests.sims.small import QUICK


class Flaky:
    """An attack that works once it is mended."""

    name = "flaky"
    needs: frozenset[str] = frozenset()
    observes = "smashed-data"
    broken: ClassVar[bool] = True

    def reconstruct(
        self, observation: object, auxiliary: object, seen: Tensor, *_: object
    ) -> Tensor:
        """Return grey images of digits, or fail."""
        if self.broken:
            raise MemoryError("none is left")
        return torch.full((len(seen), 1, 8, 8), 0.5)


def planned(
    folder: Path, variants: str = "ab", **given: Scalar
) -> tuple[scenario.Scenario, list[scenario.Cell]]:
    """Return a scenario of undefended variants and its cells."""
    path = folder / "s.toml"
    path.write_text("".join(f"[[variant]]\nname = '{name}'\n" for name in variants))
    plan, rest = scenario.override_seeds(scenario.read_scenario(str(path)), QUICK | given)
    return plan, scenario.list_cells(plan, rest)


def left_there(plan: scenario.Scenario, cells: list[scenario.Cell], out: Path) -> None:
    """Write what tells of finished cells in a bench's folder; nothing was trained."""
    rows = []
    for cell in cells:
        run_folder.create_run(out / "runs" / cell.name, cell.settings)
        (out / "runs" / cell.name / "result.json").write_text("{}")
        point: dict[str, object] = {"variant": cell.variant.name, "strength": cell.strength}
        point |= {"seed": cell.settings.seed, "undefended": True, "attacks": []}
        rows.append({**point, "run": f"runs/{cell.name}"})
    (out / "bench.json").write_text(json.dumps(rows))
    (out / "scenario.toml").write_text(plan.path.read_text())


def test_finished_cells_that_are_not_asked_for_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the scenario's order and by seed, until their folder is removed; nothing is rewritten."""
    out = tmp_path / "b"
    run_bench.run_bench(*planned(tmp_path, **{"bench.seeds": "1"}), out)
    (first,) = [
        row for row in json.loads((out / "bench.json").read_text()) if row["variant"] == "b"
    ]
    shutil.rmtree(out / "runs" / "b-1")
    capsys.readouterr()
    run_bench.run_bench(*planned(tmp_path, **{"bench.seeds": "0"}), out)
    assert "earlier calls that stay in the table: 1\n" in capsys.readouterr().err
    rows = json.loads((out / "bench.json").read_text())
    assert [row["run"] for row in rows] == ["runs/a-0", "runs/a-1", "runs/b-0"]
    assert rows[1].keys() == first.keys()
    assert {key.split("|")[0] for key in per_image.read_vectors(out)} == {
        row["run"] for row in rows
    }
    before = (out / "bench.json").read_text()
    plan, cells = planned(tmp_path, **{"bench.seeds": "0"})
    run_bench.run_bench(plan, cells[1:], out)
    assert (out / "bench.json").read_text() == before


def test_what_failed_is_named_until_it_is_finished(tmp_path: Path) -> None:
    """Or until the scenario has no such cell."""
    out = tmp_path / "b"
    plan, cells = planned(tmp_path, "a")
    out.mkdir()
    told = [{"cell": name, "reason": "ran away"} for name in ("a-0", "a-1")]
    (out / "failed.json").write_text(json.dumps(told))
    run_bench.run_bench(plan, cells, out)
    assert json.loads((out / "failed.json").read_text()) == told[1:]
    more = [*told, {"cell": "b-0", "reason": "ran away"}, {"cell": "a-0.5-0", "reason": "too"}]
    (out / "failed.json").write_text(json.dumps(more))
    run_bench.run_bench(plan, cells, out)
    assert json.loads((out / "failed.json").read_text()) == told[1:]


def test_cells_of_another_scenario_are_not_mixed_in(tmp_path: Path) -> None:
    """Nor are they dropped: the call is refused and nothing is written."""
    out = tmp_path / "b"
    left_there(*planned(tmp_path, "abcdef"), out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    words = r"that .*s\.toml has not: runs/b-0, runs/c-0, runs/d-0 and 2 more; choose another"
    with pytest.raises(RunError, match=words):
        run_bench.run_bench(*planned(tmp_path, "a"), out)
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_other_seeds_with_other_settings_are_not_mixed_in(tmp_path: Path) -> None:
    """One mean would be of two things; the engine may differ."""
    out = tmp_path / "b"
    left_there(*planned(tmp_path, "a", engine="ray"), out)
    with pytest.raises(RunError, match=r"a-0 of an earlier call.*: rounds is 5 there, 6 here;"):
        run_bench.run_bench(*planned(tmp_path, "a", rounds=6, **{"bench.seeds": "1"}), out)
    assert not (out / "runs" / "a-1").exists()


def test_a_damaged_table_is_named_before_the_work(tmp_path: Path) -> None:
    """It may hold rows of cells that were not asked for."""
    out = tmp_path / "b"
    plan, cells = planned(tmp_path, "a")
    left_there(plan, cells, out)
    shutil.rmtree(out / "runs")
    (out / "bench.json").write_text('[{"variant": "a"}]')
    with pytest.raises(RunError, match=r"bench\.json is damaged: 0\.undefended: Field required"):
        run_bench.run_bench(plan, cells, out)
    assert not (out / "runs").exists()


def test_what_differs_is_named(tmp_path: Path) -> None:
    """Three settings with both values; attacks alone need no training again."""
    _, (cell,) = planned(tmp_path, "a")
    run_folder.create_run(tmp_path / "runs" / "a", cell.settings)
    (tmp_path / "runs" / "a" / "events.jsonl").touch()  # a round was begun
    _, (other,) = planned(tmp_path, "a", rounds=6, clients=9, seed=3, **{"net.noise": 0.7})
    words = r"settings: seed is 0 there, 3 here, rounds is 5 there, 6 here, .* and 1 more; choose"
    with pytest.raises(RunError, match=words) as refused:
        run_bench.is_finished(tmp_path / "runs" / "a", other)
    assert "fedcel attack" not in str(refused.value)
    _, (more,) = planned(tmp_path, "a", **{"attack.names": "decoder*4", "attack.budget": 4.0})
    with pytest.raises(RunError, match=r"attack\.budget is 1\.0 there, 4\.0 here") as refused:
        run_bench.is_finished(tmp_path / "runs" / "a", more)
    place = tmp_path / "runs" / "a"
    given = "--set 'attack.names=decoder*4' --set attack.budget=4.0"
    assert f"`fedcel attack {place} {given}`" in str(refused.value)


def test_an_attack_that_cannot_be_made_any_more_ends_no_bench(tmp_path: Path) -> None:
    """A cell in which it failed is to be tried again, and will say why that cannot be."""
    _, (cell,) = planned(tmp_path, "a", **{"attack.names": "no_such:Attack"})
    run_folder.create_run(tmp_path / "a", cell.settings)
    (tmp_path / "a" / "cost.json").write_text("{}")
    failed = AttackRow(attack="flaky", skipped=f"{FAILURE_PREFIX} MemoryError")
    write_result(tmp_path / "a", cell.settings.attack, AttackOutcome([failed], {}, {}))
    assert not run_bench.is_finished(tmp_path / "a", cell)


@pytest.mark.filterwarnings("ignore:flaky on smashed-data")
def test_a_failed_attack_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the next call, it alone; till it works the cell has its row, and it is named there."""
    out = tmp_path / "b"
    given: dict[str, Scalar] = {"attack.names": f"optimal, {__name__}:Flaky"}
    plan, cells = planned(tmp_path, "a", **given)
    for _ in range(2):
        run_bench.run_bench(plan, cells, out)
        (row,) = json.loads((out / "bench.json").read_text())
        assert row["failed-attacks"] == ["flaky"] and row["worst-attack"] is None
    first = read_attack_rows(out / "runs" / "a-0")[0]
    monkeypatch.setattr(Flaky, "broken", False)
    capsys.readouterr()
    run_bench.run_bench(plan, cells, out)
    assert (
        "1 of 1 cells have attacks that failed or are of an earlier version: run again"
        in capsys.readouterr().err
    )
    (row,) = json.loads((out / "bench.json").read_text())
    assert row["failed-attacks"] == [] and row["worst-attack"] == "flaky"
    assert read_attack_rows(out / "runs" / "a-0")[0] == first
    run_bench.run_bench(plan, cells, out)
    assert "1 of 1 cells are finished already: skipped" in capsys.readouterr().err
