"""Trained attacks where they decide: at matched accuracy, and there again with larger budgets."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import torch

from fedcel.attacks import list_entries, parse_attacks
from fedcel.errors import SettingsError
from fedcel.leakage import UPDATE
from fedcel.runs import run_folder
from fedcel.settings import AttackSettings, Scalar
from sims.attacking import catch_up
from sims.commands.overrides import override_group
from sims.engines.process_pool import run_items, time_call
from sims.progress import estimate_left, print_line
from sims.report.larger_budgets import find_sweeps, make_sweeps_table
from sims.report.matched_table import (
    describe_failed_attacks,
    describe_intervals,
    make_anchor_lines,
)
from sims.report.number_format import DASH
from sims.report.table import format_markdown, make_table
from sims.report.table_cells import format_means
from sims.results import (
    ACCURACY,
    BenchRow,
    average_attacks,
    find_columns,
    find_worst_attack,
    lacking_settings,
    list_failures,
    measure_rows,
    read_bench_rows,
    read_image_vectors,
    requested_results,
    resample_rows,
    row_measures,
    undefended_measures,
    update_bench,
)

COLUMNS = find_columns(
    *("accuracy", "bits-beyond-label", "identification-optimal", "mse", "psnr", "ssim"),
    *("identification-1", "identification-5", "label-accuracy"),
)


class CellTask(NamedTuple):
    """One cell to attack: its row of bench.json, its folder, with what."""

    row: BenchRow
    folder: Path
    how: AttackSettings


def escalate(
    folder: Path,
    overrides: Mapping[str, Scalar],
    loss: float,
    budgets: Sequence[float],
    *,
    jobs: int = 1,
    every: bool = False,
) -> str:
    """Attack a bench's cells at `loss` points of accuracy; return the Markdown of what came of it.

    Each variant is attacked, all seeds of it, at the strength whose mean accuracy is nearest to the
    undefended net's less `loss`, or with `every` at all its strengths; then, there, the attack that
    rebuilt images best once more with each of `budgets`, on the variant's first seed. What was
    attacked before is not attacked again. The results stand in the run folders and, with those of
    earlier calls, in bench.json.

    Args:
        folder: Of a bench.
        overrides: Settings of the attacks, by their keys.
        loss: Points of accuracy, in [0, 100).
        budgets: Multiples of an attack's usual effort.
        jobs: Cells attacked at the same time.
        every: Whether all strengths are attacked.

    Raises:
        RunError: When the bench or a run in it is missing or damaged.
        SettingsError: When `overrides` are not of an attack, or `loss` is out of range.
    """
    if not 0 <= loss < 100:
        raise SettingsError(f"--loss is {loss:g}, must be points of accuracy below 100, as 2")
    check_attacks(str(overrides.get("attack.names", "")))
    rows = read_bench_rows(folder)
    nearest = nearest_rows(rows, loss)
    more = [row for row in rows if row not in nearest] if every else []
    tasks = [plan_task(folder, row, overrides) for row in (*nearest, *more)]
    attack_cells(tasks, jobs, ", then larger budgets" if budgets else "")
    update_bench(folder)  # before the larger budgets, which take longest
    tasks = tasks[: len(nearest)]
    attacked = [hold_to_task(task) for task in tasks]
    larger = plan_budgets(folder, attacked, tasks, overrides, budgets=budgets)
    text = format_attacked(attacked, folder, loss)
    if not larger:
        return text
    attack_cells(larger, jobs)
    swept = {task.row.run for task in larger}
    sweeps = find_sweeps(row for row in update_bench(folder) if row.run in swept)
    table = format_markdown(make_sweeps_table(sweeps))
    return f"{text}\n**The worst attack with larger budgets, one seed**\n\n{table}\n"


def check_attacks(names: str) -> None:
    """Refuse attacks none of which rebuilds images from one inference; '' are the runs' own."""
    if not names:
        return
    attacks = [attack for attack, repeats in parse_attacks(names) if attack and repeats == 1]
    if all(attack.observes == UPDATE for attack in attacks):
        raise SettingsError(
            f"attack.names is {names!r}: none of these rebuilds images from one inference, and "
            "nothing else is compared here; name one that does, as 'decoder'"
        )


def nearest_rows(rows: Sequence[BenchRow], loss: float) -> list[BenchRow]:
    """Return the rows of each variant's strength nearest to the undefended accuracy less `loss`.

    The mean over seeds of what each costs beside the first undefended variant of its seed.
    """
    measured = measure_rows(rows)
    bare = undefended_measures(rows, measured)
    costs: dict[tuple[str, float | None], list[float]] = {}
    for row, values in zip(rows, measured, strict=True):
        cost = bare[row.seed][ACCURACY.key] - values[ACCURACY.key]
        costs.setdefault(row.point, []).append(cost)
    distances = {point: abs(fmean(values) - loss / 100) for point, values in costs.items()}
    nearest = {
        variant: min((p for p in distances if p[0] == variant), key=lambda p: distances[p])
        for variant in {row.variant for row in rows}
    }
    return [row for row in rows if row.point == nearest[row.variant]]


def plan_task(folder: Path, row: BenchRow, overrides: Mapping[str, Scalar]) -> CellTask:
    """Return a cell's attack: the run's own attack settings, changed by those given."""
    settings = override_group(run_folder.read_settings(folder / row.run), dict(overrides), "attack")
    return CellTask(row, folder / row.run, settings.attack)


def plan_budgets(
    folder: Path,
    attacked: Sequence[BenchRow],
    tasks: Sequence[CellTask],
    overrides: Mapping[str, Scalar],
    *,
    budgets: Sequence[float],
) -> list[CellTask]:
    """Return the tasks of each variant's first seed again, its worst attack with each budget."""
    seeds = first_seeds(attacked)
    planned = []
    for row, task in zip(attacked, tasks, strict=True):
        if row.worst and row.seed == seeds[row.variant]:
            entry = entry_of(row.worst.attack, task.how.names)
            for budget in budgets:
                changes = {**overrides, "attack.names": entry, "attack.budget": budget}
                planned.append(plan_task(folder, row, changes))
    return planned


def first_seeds(rows: Sequence[BenchRow]) -> dict[str, int]:
    """Return each variant's smallest seed: that of another may have diverged."""
    return {row.variant: row.seed for row in sorted(rows, key=lambda row: row.seed, reverse=True)}


def entry_of(attack: str, names: str) -> str:
    """Return the entry of `attack.names` that made an attack: an own one has another name."""
    return next(entry for entry, name in list_entries(names) if name == attack)


def attack_cells(tasks: Sequence[CellTask], jobs: int, then: str = "") -> None:
    """Attack each cell with what it lacks (`lacking_settings`); `then` says what follows."""
    missing: dict[Path, list[CellTask]] = {}
    for task in tasks:
        if lacking_settings(task.folder, task.how) is not None:
            missing.setdefault(task.folder, []).append(task)
    seconds: list[float] = []
    attack = partial(time_call, attack_cell)
    with closing(run_items(attack, list(missing.values()), jobs)) as running:
        for name, spent in running:
            seconds.append(spent)
            ended = len(seconds)
            remaining = estimate_left(seconds, len(missing) - ended, jobs)
            print_line(f"attacked {name} ({ended}/{len(missing)}){remaining}{then}")


def attack_cell(tasks: Sequence[CellTask]) -> str:
    """Attack one cell in every way asked for, in turn; return its name."""
    torch.set_num_threads(1)
    for task in tasks:
        catch_up(task.folder, task.how, title=task.folder.name)
    return tasks[0].folder.name


def hold_to_task(task: CellTask) -> BenchRow:
    """Return a cell's row with the worst of the attacks that were asked for, if any worked."""
    results = requested_results(task.folder, task.how) or []
    failed = list_failures(row for result in results for row in result.rows)
    return task.row.model_copy(
        update={
            "worst": find_worst_attack(average_attacks(results)),
            "failed_attacks": tuple(failed),
        }
    )


def format_attacked(rows: Sequence[BenchRow], folder: Path, loss: float) -> str:
    """Return the table of rows that are held to the attacks asked for."""
    samples = resample_rows(rows, read_image_vectors(folder))
    groups: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(row.variant, []).append(number)
    lines = []
    for group in groups.values():
        first = rows[group[0]]
        names = sorted({worst.attack for number in group if (worst := rows[number].worst)})
        cells = format_means(
            COLUMNS,
            [row_measures(rows[number]) for number in group],
            [[sample[number] for number in group] for sample in samples],
        )
        label = first.name if first.strength is None else f"{first.name}, {first.strength:g}"
        lines.append([label, *cells, " / ".join(names) or DASH])
    lines += [[*cells, DASH] for cells in make_anchor_lines(rows, COLUMNS)]
    head = ["variant", *(column.head for column in COLUMNS), "worst attack"]
    return (
        f"**Trained attacks, each variant where it is nearest to {loss:g} points below the "
        f"undefended accuracy**{describe_targets(rows)}{describe_intervals(samples)}"
        f"{describe_failed_attacks(rows)}\n\n"
        f"{format_markdown(make_table('Trained attacks', head, lines))}\n"
    )


def describe_targets(rows: Iterable[BenchRow]) -> str:
    """Say of how many targets the scores are, and among how many the right one was looked for."""
    attacked = [(row, row.worst) for row in rows if row.worst]
    targets = {worst.targets for _, worst in attacked if worst.targets}
    among = {worst.identification_candidates for _, worst in attacked} - {None}
    optimal = {row.identification_candidates for row, _ in attacked}
    sentence = f" Rebuilt: {_join(targets)} targets" if targets else ""
    if among and None not in optimal and among != optimal:
        sentence += (
            f", the right one looked for among {_join(among)}; the optimal attacker's among "
            f"{_join(optimal)}"
        )
    return f"{sentence}." if sentence else ""


def _join(numbers: Iterable[int | None]) -> str:
    return " or ".join(sorted(map(str, numbers)))
