"""Attack a bench's variants where they are compared: 2 points below the undefended accuracy.

Each variant is attacked, all seeds of it, at the strength whose mean accuracy is nearest; then the
attack that rebuilt images best there once more with larger budgets, on the variant's first seed.
Attacks that a run has met are not repeated. Their results stand in the runs and in bench.json.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, NamedTuple

import torch
import typer

from carry_out import carry_out
from fedcel.runs import run_folder
from fedcel.settings import AttackSettings, Scalar
from sims.attacking import catch_up
from sims.commands.main import main
from sims.commands.options import Assignments, BenchFolder, Jobs, parse_numbers
from sims.overrides import override_group, parse_overrides
from sims.report import write_report
from sims.results.attack_results import average_attacks, lacking_settings, requested_results
from sims.results.bench_rows import find_worst_attack, read_bench_rows, update_bench
from sims.results.columns import ACCURACY, POSITIONS
from sims.results.intervals import measure_rows
from sims.results.matched_accuracy import undefended_measures
from sims.results.records import BenchRow

LOSS = 0.02
"""Accuracy given up."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def escalate_command(
    folder: BenchFolder,
    assignments: Assignments = None,
    budgets: Annotated[
        str, typer.Option(help="Budgets at which the worst attack is run once more, as 4,10.")
    ] = "",
    every: Annotated[
        bool, typer.Option("--every", help="Attack all strengths, for the table's curves.")
    ] = False,
    jobs: Jobs = 1,
) -> None:
    """Run stronger attacks on a bench's variants at matched accuracy."""
    overrides, efforts = parse_overrides(assignments), parse_numbers("--budgets", budgets, above=0)
    escalate(folder, overrides, efforts, jobs=jobs, all_strengths=every)
    print(f"report: {write_report(folder)}")


class CellTask(NamedTuple):
    """One cell to attack: its row of bench.json, its folder, the attacks."""

    row: BenchRow
    folder: Path
    attack_settings: AttackSettings


def escalate(
    folder: Path,
    overrides: Mapping[str, Scalar],
    budgets: Sequence[float] = (),
    *,
    jobs: int = 1,
    all_strengths: bool = False,
) -> None:
    """Attack a bench's cells at matched accuracy, then with each of `budgets`.

    Args:
        folder: The bench's folder.
        overrides: Settings of the attacks, by their keys; all others are those of each run.
        budgets: Multiples of an attack's usual effort.
        jobs: Cells attacked at the same time.
        all_strengths: Whether all strengths are attacked.

    Raises:
        RunError: The bench or a run in it is missing or damaged.
        SettingsError: `overrides` are not of an attack.
    """
    rows = read_bench_rows(folder)
    nearest = nearest_rows(rows, LOSS)
    others = [row for row in rows if all_strengths and row not in nearest]
    compared = [plan_task(folder, row, overrides) for row in nearest]
    attack_cells([*compared, *(plan_task(folder, row, overrides) for row in others)], jobs)
    larger = [
        plan_task(folder, row, {**overrides, "attack.names": name, "attack.budget": budget})
        for row, name in find_worst_attacks(compared)
        for budget in budgets
    ]
    attack_cells(larger, jobs)
    update_bench(folder)


def nearest_rows(rows: Sequence[BenchRow], loss: float) -> list[BenchRow]:
    """Return the rows of each variant's strength nearest to the undefended accuracy less `loss`.

    By the mean over seeds of the difference to the first undefended variant of each seed.
    """
    (measured,) = measure_rows(rows, {})
    undefended = undefended_measures(rows, measured)
    costs: dict[tuple[str, float | None], list[float]] = {}
    for row, values in zip(rows, measured, strict=True):
        cost = (undefended[row.seed] - values)[POSITIONS[ACCURACY.key]]
        costs.setdefault(row.point, []).append(float(cost))
    distances = {point: abs(fmean(values) - loss) for point, values in costs.items()}
    nearest = {
        variant: min((p for p in distances if p[0] == variant), key=lambda p: distances[p])
        for variant in {row.variant for row in rows}
    }
    return [row for row in rows if row.point == nearest[row.variant]]


def plan_task(folder: Path, row: BenchRow, overrides: Mapping[str, Scalar]) -> CellTask:
    """Plan a cell's attack: by the run's own attack settings, with those given replaced."""
    settings = override_group(run_folder.read_settings(folder / row.run), dict(overrides), "attack")
    return CellTask(row, folder / row.run, settings.attack)


def find_worst_attacks(tasks: Iterable[CellTask]) -> list[tuple[BenchRow, str]]:
    """Find the worst attack on each variant, on its smallest seed on which one rebuilt images."""
    worst: dict[str, tuple[BenchRow, str]] = {}
    for task in sorted(tasks, key=lambda task: task.row.seed):
        results = requested_results(task.folder, task.attack_settings) or []
        if attack := find_worst_attack(average_attacks(results)):
            worst.setdefault(task.row.variant, (task.row, attack.attack))
    return list(worst.values())


def attack_cells(tasks: Iterable[CellTask], jobs: int) -> None:
    """Attack each cell with all that it lacks, one after the other."""
    missing: dict[Path, list[CellTask]] = {}
    for task in tasks:
        if lacking_settings(task.folder, task.attack_settings):
            missing.setdefault(task.folder, []).append(task)
    carry_out(attack_cell, list(missing.values()), jobs, "attacked")


def attack_cell(tasks: Sequence[CellTask]) -> str:
    """Attack one cell in every way asked for, in turn; return its name."""
    torch.set_num_threads(1)
    for task in tasks:
        catch_up(task.folder, task.attack_settings, title=task.folder.name)
    return tasks[0].folder.name


if __name__ == "__main__":
    sys.exit(main(app=app, name="escalate.py"))
