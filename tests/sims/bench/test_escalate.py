"""Trained attacks at matched accuracy: which cells, once each, and what is said of them."""

import importlib
import json
import re
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from fedcel.attacks import Attacked, AttackRow
from fedcel.errors import RunError, SettingsError
from fedcel.runs import per_image
from fedcel.settings import AttackSettings, Scalar
from sims.bench import scenario
from sims.bench.escalate import (
    Task,
    budget_table,
    describe_targets,
    entry_of,
    escalate,
    first_seeds,
    is_replaced_by,
    nearest_rows,
    score_cell,
)
from sims.report.read import ESCALATED
from sims.results.attack_results import write_result
from sims.results.matched_accuracy import BITS
from sims.results.rows import read_bench_rows
from sims.results.worst_attack import common_attacks
from tests.sims.small import QUICK

BENCH = importlib.import_module("sims.bench.run")  # `sims.bench.run` itself is the function
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


def row(variant: str, strength: float | None, accuracy: float, seed: int) -> dict[str, object]:
    """Return what matters of a row of bench.json."""
    bare = {"undefended": variant == "none", "strength": strength, "seed": seed}
    return {"variant": variant, "accuracy": accuracy, BITS: 1.0, **bare}


def test_the_nearest_strength_by_the_mean_over_seeds() -> None:
    """.93 and .90 are .915 on average, 1.5 points from .90; .85 is 5. One seed alone misleads."""
    rows = [row("none", None, 0.92, 0), row("none", None, 0.92, 1)]
    weak = [row("noise", 0.2, 0.93, 0), row("noise", 0.2, 0.90, 1)]
    strong = [row("noise", 0.9, 0.899, 0), row("noise", 0.9, 0.80, 1)]
    assert nearest_rows([*rows, *weak, *strong], 2) == [*rows, *weak]
    assert nearest_rows([*rows, *weak, *strong], 8) == [*rows, *strong]


def test_the_loss_is_to_the_first_undefended_variant_as_in_tables() -> None:
    """Beside .98 two points are .96; the mean of both undefended ones would take .92."""
    rows = [row("none", None, 0.98, 0), row("wide", None, 0.90, 0) | {"undefended": True}]
    swept = [row("noise", 0.2, 0.96, 0), row("noise", 0.9, 0.92, 0)]
    assert nearest_rows([*rows, *swept], 2) == [*rows, swept[0]]
    with pytest.raises(RunError, match="no undefended row of seed 0"):
        nearest_rows(swept, 2)


def test_a_variant_whose_first_seed_failed_has_its_next() -> None:
    """None of its larger budgets is left out for it."""
    rows = [row("none", None, 0.9, 0), row("none", None, 0.9, 1), row("noise", 0.2, 0.9, 2)]
    assert first_seeds([*rows, row("noise", 0.2, 0.9, 1)]) == {"none": 0, "noise": 1}


@pytest.mark.long
def test_a_real_bench_is_attacked_once_and_the_winner_with_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both seeds of each variant at one strength; the first seed's worst attack again, larger."""
    path = tmp_path / "s.toml"
    path.write_text(SWEPT)
    plan = scenario.read_scenario(str(path))
    BENCH.run_bench(plan, scenario.list_cells(plan, QUICK), tmp_path / "b")
    given: dict[str, Scalar] = {"attack.names": "decoder", "attack.budget": 0.02}
    said = escalate(tmp_path / "b", given, 0, [0.04, 0.05], jobs=2)  # one file for both
    told = capsys.readouterr().err
    assert told.count("\nattacked ") == 6
    assert re.search(r"^attacked \S+ \(1/4\), about \d+ s left, then larger budgets$", told, re.M)
    rows = json.loads((tmp_path / "b" / ESCALATED).read_text())
    assert [(r["variant"], r["strength"], r["seed"], r["budget"]) for r in rows] == [
        ("none", None, 0, 0.02),
        ("none", None, 1, 0.02),
        ("noise", 0.2, 0, 0.02),
        ("noise", 0.2, 1, 0.02),
        ("none", None, 0, 0.04),
        ("none", None, 0, 0.05),
        ("noise", 0.2, 0, 0.04),
        ("noise", 0.2, 0, 0.05),
    ]
    assert all(r["attack"] == "decoder" and 0 < r["mse"] < 1 and BITS in r for r in rows)
    lines = [line.split("|")[1].strip() for line in said.splitlines() if line[:1] == "|"]
    assert "noise, 0.2" in lines and "noise, 9" not in lines
    assert "*label only (class means)*" in lines
    assert all(0 < r["oracle-mse"] < r["mean-mse"] for r in rows)
    (known,) = [line for line in said.splitlines() if "label only" in line]
    assert f" {rows[0]['oracle-mse']:.4f} " in known
    assert "a bootstrap over the test images" in said
    assert escalate(tmp_path / "b", given, 0, [0.04, 0.05]) == said
    assert "attacked" not in capsys.readouterr().err
    with pytest.raises(SettingsError, match=r"net\.noise"):
        escalate(tmp_path / "b", {"net.noise": 1.0}, 0, [])
    all_cells_have_their_worst_attack(tmp_path / "b", given)
    before = per_image.read_vectors(tmp_path / "b")
    BENCH.run_bench(plan, scenario.list_cells(plan, QUICK), tmp_path / "b")  # nothing is left to do
    after = per_image.read_vectors(tmp_path / "b")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def all_cells_have_their_worst_attack(folder: Path, given: dict[str, Scalar]) -> None:
    """With `every`, strength 9 too; earlier rows stay, and the lowest error is each cell's."""
    before = json.loads((folder / ESCALATED).read_text())
    escalate(folder, given, 0, [], every=True)
    rows = json.loads((folder / ESCALATED).read_text())
    assert len(rows) == len(before) + 2 and all(row in rows for row in before)
    each = {row["run"]: row["mse"] for row in rows if row["budget"] == 0.02}  # all seeds alike
    assert {row["run"]: row["mse"] for row in read_bench_rows(folder)} == each
    images = per_image.read_vectors(folder)
    for run, error in each.items():
        assert float(images[f"{run}|mse"].mean()) == pytest.approx(error, rel=1e-5)
    for row in json.loads((folder / "bench.json").read_text()):
        for key in ("accuracy", BITS, "identification-optimal"):
            assert float(images[f"{row['run']}|{key}"].mean()) == pytest.approx(row[key], abs=1e-5)


def test_whether_a_larger_budget_still_helps_is_said() -> None:
    """At a fiftieth less, the line is drawn."""
    base = {"variant": "noise", "title": "noise", "seed": 0, "attack": "decoder"}
    pair = [{**base, "budget": 1.0, "mse": 0.04}, {**base, "budget": 4.0, "mse": 0.03}]
    assert budget_table(pair).endswith("| noise | decoder | 0.0400 | 0.0300 | yes |")
    assert budget_table([pair[0], {**pair[1], "mse": 0.0399}]).endswith("| 0.0399 | no |")


def test_each_of_several_attacks_has_its_row(tmp_path: Path) -> None:
    """The worst first. Tables find both on every cell, whichever won where."""
    how = AttackSettings(names="decoder,kernel-ridge,decoder*4", seeds=1)
    common = {"observation": "smashed-data", "knowledge": "held-out", "budget": 1.0, "targets": 10}
    cells, more = [], []
    for name, errors in (("a", (0.05, 0.04)), ("b", (0.03, 0.06))):
        cells.append(row(name, None, 0.9, 0) | {"run": name})
        rows = [
            {"attack": attack, "seed": 0, "mse": error, **common}
            for attack, error in zip(("decoder", "kernel-ridge"), errors, strict=True)
        ]
        rows.append(rows[0] | {"attack": "decoder*4", "observation": "smashed-data*4", "mse": 0.01})
        (tmp_path / name).mkdir()
        for each in rows:
            alone = how.model_copy(update={"names": each["attack"]})
            write_result(tmp_path / name, alone, Attacked([AttackRow.from_dict(each)], {}, {}))
        more.append(score_cell(Task(cells[-1], tmp_path / name, how)))
    told = [[(one["attack"], one["mse"]) for one in rows] for rows in more]
    assert told == [
        [("kernel-ridge", 0.04), ("decoder", 0.05)],
        [("decoder", 0.03), ("kernel-ridge", 0.06)],
    ]
    assert common_attacks(cells, [one for rows in more for one in rows]).more == [
        *more[0],
        *more[1],
    ]
    (nothing,) = score_cell(Task(cells[0], tmp_path / "none", how))
    assert nothing["attack"] is None and nothing["budget"] == 1.0


@pytest.mark.parametrize("names", ["optimal", "decoder*16", "first-layer, gradient-inversion"])
def test_attacks_that_no_table_compares_are_refused_before_the_work(names: str) -> None:
    """They see more than one inference shows, or rebuild nothing; no bench is looked for."""
    with pytest.raises(SettingsError, match="none of these rebuilds images from one inference"):
        escalate(Path("/nowhere"), {"attack.names": names}, 2, [])


def test_an_own_attack_is_asked_again_by_what_was_typed() -> None:
    """Its name is its own; the larger budgets need the import string."""
    names = "optimal, decoder,decoder*4 ,fedcel.attacks.rmle:RMLE"
    assert entry_of("decoder", names) == "decoder"
    assert entry_of("rmle", names) == "fedcel.attacks.rmle:RMLE"


def test_a_row_that_says_less_gives_way() -> None:
    """One of before knowledge and targets were told stands for the same attack, no other does."""
    old = {"variant": "none", "strength": None, "seed": 0, "attack": "decoder", "budget": 1.0}
    new = old | {"knowledge": "held-out", "targets": 10}
    assert is_replaced_by(old, new)
    assert is_replaced_by(new, new)
    for key, value in (("targets", 20), ("seed", 1), ("budget", 4.0), ("knowledge", "training")):
        assert not is_replaced_by(new | {key: value}, new)
    assert not is_replaced_by(new, old)


def test_few_targets_are_told() -> None:
    """Five of ten found beside two of a hundred is no attacker above the optimal one."""
    row = {"targets": 10, "picked-among": 10, "identification-candidates": 100}
    assert describe_targets([row]) == (
        " Rebuilt: 10 targets, the right one looked for among 10; the optimal attacker's among 100."
    )
    assert (
        describe_targets([row | {"targets": 400, "picked-among": 100}]) == " Rebuilt: 400 targets."
    )
    assert describe_targets([{}]) == ""


def test_wrong_input_is_refused(tmp_path: Path) -> None:
    """A loss of everything leaves nothing to match."""
    with pytest.raises(SettingsError, match="--loss is 100"):
        escalate(tmp_path, {}, 100, [])


class Flaky:
    """An attack that works once it is mended."""

    name = "flaky"
    needs: frozenset[str] = frozenset()
    observes = "smashed-data"
    broken: ClassVar[bool] = True

    def reconstruct(self, observation: object, known: object, seen: Tensor, *_: object) -> Tensor:
        """Return grey images of digits, or fail."""
        if self.broken:
            raise MemoryError("none is left")
        return torch.full((len(seen), 1, 8, 8), 0.5)


@pytest.mark.filterwarnings("ignore:flaky on smashed-data")
def test_a_failed_attack_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row is then in the place of the one without a score."""
    path = tmp_path / "s.toml"
    path.write_text("[[variant]]\nname = 'none'\n")
    plan = scenario.read_scenario(str(path))
    BENCH.run_bench(plan, scenario.list_cells(plan, QUICK), tmp_path / "b")
    given: dict[str, Scalar] = {"attack.names": f"{__name__}:Flaky"}
    escalate(tmp_path / "b", given, 0, [])
    (first,) = json.loads((tmp_path / "b" / ESCALATED).read_text())
    assert first["attack"] is None and first["failed-attacks"] == ["flaky"]
    monkeypatch.setattr(Flaky, "broken", False)
    escalate(tmp_path / "b", given, 0, [])
    (again,) = json.loads((tmp_path / "b" / ESCALATED).read_text())
    assert again["attack"] == "flaky" and 0 < again["mse"] < 1
    assert "failed-attacks" not in again
