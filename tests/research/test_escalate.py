"""Trained attacks at matched accuracy: which cells, once each, and with which budgets."""

import json
import re
from pathlib import Path

import pytest
import torch

import escalate
from escalate import CellTask, find_worst_attacks, nearest_rows
from fedcel import per_image
from fedcel.attacks import AttackOutcome
from fedcel.errors import RunError, SettingsError
from fedcel.settings import AttackSettings, Scalar
from sims.bench import run_bench, scenario
from sims.results.attack_results import attack_vector_name, write_result
from sims.results.bench_rows import read_bench_rows
from sims.results.records import BenchRow
from tests.sims.results.made import make_row
from tests.sims.small import QUICK

BITS = "bits-beyond-label"
SWEPT = """
[bench]
seeds = "0,1"
[[variant]]
name = "none"
[[variant]]
name = "noise"
strength-key = "defence.strength"
strengths = "0.2,9"
settings = { defence = { name = "noise" } }
"""


def row(
    variant: str, strength: float | None, accuracy: float, seed: int, **more: object
) -> BenchRow:
    return make_row(variant, strength, accuracy=accuracy, seed=seed, **more)


def test_the_nearest_strength_by_the_mean_over_seeds() -> None:
    """.93 and .90 are .915 on average, 1.5 points from .90; .85 is 5. One seed alone misleads."""
    rows = [row("none", None, 0.92, 0), row("none", None, 0.92, 1)]
    weak = [row("noise", 0.2, 0.93, 0), row("noise", 0.2, 0.90, 1)]
    strong = [row("noise", 0.9, 0.899, 0), row("noise", 0.9, 0.80, 1)]
    assert nearest_rows([*rows, *weak, *strong], 0.02) == [*rows, *weak]
    assert nearest_rows([*rows, *weak, *strong], 0.08) == [*rows, *strong]


def test_the_loss_is_to_the_first_undefended_variant_as_in_tables() -> None:
    """Beside .98 two points are .96; the mean of both undefended ones would take .92."""
    rows = [row("none", None, 0.98, 0), row("wide", None, 0.90, 0, undefended=True)]
    swept = [row("noise", 0.2, 0.96, 0), row("noise", 0.9, 0.92, 0)]
    assert nearest_rows([*rows, *swept], 0.02) == [*rows, swept[0]]
    with pytest.raises(RunError, match="no undefended row of seed 0"):
        nearest_rows(swept, 0.02)


@pytest.mark.long
def test_a_real_bench_is_attacked_once_and_the_winner_with_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both seeds of each variant at one strength; the first seed's worst attack again, larger."""
    path = tmp_path / "s.toml"
    path.write_text(SWEPT)
    plan = scenario.read_scenario(str(path))
    run_bench.run_bench(plan, scenario.list_cells(plan, QUICK), tmp_path / "b")
    given: dict[str, Scalar] = {"attack.names": "decoder", "attack.budget": 0.02}
    monkeypatch.setattr(escalate, "LOSS", 0.0)
    escalate.escalate(tmp_path / "b", given, [0.04, 0.05], jobs=2)
    told = capsys.readouterr().err
    assert told.count("\nattacked ") == 6
    assert re.search(r"^attacked \S+ \(1/4\), about \d+ s left$", told, re.M)
    rows = read_bench_rows(tmp_path / "b")
    assert [(r.variant, r.strength, r.seed, [a.budget for a in r.attacks]) for r in rows] == [
        ("none", None, 0, [0.02, 0.04, 0.05]),
        ("none", None, 1, [0.02]),
        ("noise", 0.2, 0, [0.02, 0.04, 0.05]),
        ("noise", 0.2, 1, [0.02]),
        ("noise", 9.0, 0, []),
        ("noise", 9.0, 1, []),
    ]
    attacks = [attack for row in rows for attack in row.attacks]
    assert all(a.attack == "decoder" and a.mse and 0 < a.mse < 1 for a in attacks)
    assert all(a.oracle_mse and a.mean_mse and 0 < a.oracle_mse < a.mean_mse for a in attacks)
    escalate.escalate(tmp_path / "b", given, [0.04, 0.05])
    assert "attacked" not in capsys.readouterr().err
    with pytest.raises(SettingsError, match=r"net\.noise"):
        escalate.escalate(tmp_path / "b", {"net.noise": 1.0})
    all_cells_have_their_worst_attack(tmp_path / "b", given)
    before = per_image.read_vectors(tmp_path / "b")
    written = (tmp_path / "b" / "bench.json").read_text()
    run_bench.run_bench(plan, scenario.list_cells(plan, QUICK), tmp_path / "b")  # all is done
    assert (tmp_path / "b" / "bench.json").read_text() == written
    after = per_image.read_vectors(tmp_path / "b")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def all_cells_have_their_worst_attack(folder: Path, given: dict[str, Scalar]) -> None:
    """With `all_strengths`, strength 9 too; earlier attacks stay, and all cells have met one."""
    before = read_bench_rows(folder)
    escalate.escalate(folder, given, all_strengths=True)
    rows = read_bench_rows(folder)
    assert [row.attacks for row in rows[:4]] == [row.attacks for row in before[:4]]
    assert all(row.attacks for row in rows)
    images = per_image.read_vectors(folder)
    for row in rows:
        for met in row.attacks:
            vector = images[f"{row.run}|{attack_vector_name(met.id, 'mse')}"]
            assert float(vector.mean()) == pytest.approx(met.mse, rel=1e-5)
        for key in ("accuracy", BITS, "identification-optimal"):
            mean = float(images[f"{row.run}|{key}"].mean())
            assert mean == pytest.approx(row.measure(key), abs=1e-5)
    for columns in json.loads((folder / "bench.json").read_text()):
        assert (columns["worst-attack"], columns["worst-budget"]) == ("decoder", 0.02)


def test_larger_budgets_go_to_the_worst_attack_on_the_first_seed(tmp_path: Path) -> None:
    """Attacks on repeated answers do not compete; seeds without a reconstruction are skipped."""
    settings = AttackSettings(names="decoder,kernel-ridge,decoder*4", seeds=1)
    common = {"observation": "smashed-data", "knowledge": "held-out", "budget": 1.0, "targets": 10}
    tasks = []
    for variant, seed, errors in (
        ("none", 1, (0.05, 0.04)),
        ("none", 0, (0.03, 0.06)),
        ("cel", 0, (None, None)),
        ("cel", 2, (0.02, 0.01)),
        ("cel", 1, (0.05, 0.04)),
        ("diverged", 0, (None, None)),
    ):
        cell = row(variant, None, 0.9, seed)
        place = tmp_path / f"{variant}-{seed}"
        place.mkdir()
        rows: list[dict[str, object]] = [
            {"attack": attack, "seed": 0, "mse": error, **common}
            for attack, error in zip(("decoder", "kernel-ridge"), errors, strict=True)
        ]
        rows.append(rows[0] | {"attack": "decoder*4", "observation": "smashed-data*4", "mse": 0.01})
        for result in rows:
            alone = settings.model_copy(update={"names": result["attack"]})
            write_result(place, alone, AttackOutcome([result], {}, {}))
        tasks.append(CellTask(cell, place, settings))
    worst = find_worst_attacks(tasks)
    assert sorted((cell.variant, cell.seed, attack) for cell, attack in worst) == [
        ("cel", 1, "kernel-ridge"),
        ("none", 0, "decoder"),
    ]
