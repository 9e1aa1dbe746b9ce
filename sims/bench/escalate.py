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
from sims.engines.process_pool import run_items, time_call
from sims.overrides import override_group
from sims.progress import estimate_left, print_line
from sims.report.larger_budgets import find_sweeps, make_sweeps_table
from sims.report.matched_table import (
    describe_failed_attacks,
    describe_intervals,
    make_anchor_lines,
)
from sims.report.table import DASH, format_markdown, format_means, make_table
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
    attack_settings: AttackSettings


class AttackPlan(NamedTuple):
    """The cells to attack: those that are compared, and others that only get the attacks."""

    compared: list[CellTask]
    others: list[CellTask]


def escalate(
    folder: Path,
    overrides: Mapping[str, Scalar],
    loss: float,
    budgets: Sequence[float],
    *,
    jobs: int = 1,
    all_strengths: bool = False,
) -> str:
    """Attack a bench's cells at `loss` points of accuracy; return the Markdown of what came of it.

    Each variant is attacked, all seeds of it, at the strength whose mean accuracy is nearest to the
    undefended net's less `loss`, or with `all_strengths` at all of them; then, there, the attack
    that rebuilt images best once more with each of `budgets`, on the variant's first seed that has
    one. What was attacked before is not attacked again. The results stand in the run folders and,
    with those of earlier calls, in bench.json.

    Args:
        folder: The bench's folder.
        overrides: Settings of the attacks, by their keys.
        loss: Points of accuracy, in [0, 100).
        budgets: Multiples of an attack's usual effort.
        jobs: Cells attacked at the same time.
        all_strengths: Whether all strengths are attacked.

    Returns:
        A table of the worst attacks, and one of larger budgets if there were any.

    Raises:
        RunError: When the bench or a run in it is missing or damaged.
        SettingsError: When `overrides` are not of an attack, or `loss` is out of range.
    """
    plan = plan_attacks(folder, overrides, loss, all_strengths)
    announcement = ", then larger budgets" if budgets else ""
    attack_cells(folder, [*plan.compared, *plan.others], jobs, announcement)
    rows = [hold_to_task(task) for task in plan.compared]
    budget_tasks = plan_budgets(folder, rows, plan.compared, overrides, budgets=budgets)
    swept_rows = attack_cells(folder, budget_tasks, jobs) if budget_tasks else []
    return format_attacked(rows, folder, loss) + format_budgets(rows, swept_rows, budgets)


def plan_attacks(
    folder: Path, overrides: Mapping[str, Scalar], loss: float, all_strengths: bool
) -> AttackPlan:
    """Return which cells of a bench are attacked, with what; refuse what cannot be compared."""
    if not 0 <= loss < 100:
        raise SettingsError(f"--loss is {loss:g}, must be points of accuracy below 100, as 2")
    refuse_update_attacks(str(overrides.get("attack.names", "")))
    rows = read_bench_rows(folder)
    nearest = nearest_rows(rows, loss)
    other_rows = [row for row in rows if row not in nearest] if all_strengths else []
    return AttackPlan(
        [plan_task(folder, row, overrides) for row in nearest],
        [plan_task(folder, row, overrides) for row in other_rows],
    )


def refuse_update_attacks(names: str) -> None:
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
    undefended = undefended_measures(rows, measured)
    costs: dict[tuple[str, float | None], list[float]] = {}
    for row, values in zip(rows, measured, strict=True):
        cost = undefended[row.seed][ACCURACY.key] - values[ACCURACY.key]
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
    """Return the tasks of each variant's first seed that has a worst attack, with each budget."""
    seeds = first_attacked_seeds(attacked)
    budget_tasks = []
    for row, task in zip(attacked, tasks, strict=True):
        if row.worst and row.seed == seeds[row.variant]:
            entry = find_entry(row.worst.attack, task.attack_settings.names)
            for budget in budgets:
                changes = {**overrides, "attack.names": entry, "attack.budget": budget}
                budget_tasks.append(plan_task(folder, row, changes))
    return budget_tasks


def first_attacked_seeds(rows: Sequence[BenchRow]) -> dict[str, int]:
    """Return each variant's smallest seed on which an attack rebuilt images.

    Variants may lack a seed that diverged. One on which no attack worked has no entry.
    """
    latest_first = sorted(rows, key=lambda row: row.seed, reverse=True)
    return {row.variant: row.seed for row in latest_first if row.worst}


def find_entry(attack: str, names: str) -> str:
    """Return the entry of `attack.names` that made an attack: an own one has another name."""
    return next(entry for entry, name in list_entries(names) if name == attack)


def attack_cells(
    folder: Path, tasks: Sequence[CellTask], jobs: int, announcement: str = ""
) -> list[BenchRow]:
    """Attack each cell with what it lacks (`lacking_settings`), and write it to bench.json.

    Args:
        folder: The bench's folder.
        tasks: The cells to attack, with what.
        jobs: Cells attacked at the same time.
        announcement: What follows, for the progress.

    Returns:
        The rows of bench.json whose cells the tasks name.
    """
    missing: dict[Path, list[CellTask]] = {}
    for task in tasks:
        if lacking_settings(task.folder, task.attack_settings) is not None:
            missing.setdefault(task.folder, []).append(task)
    seconds: list[float] = []
    attack = partial(time_call, attack_cell)
    with closing(run_items(attack, list(missing.values()), jobs)) as running:
        for name, spent in running:
            seconds.append(spent)
            ended = len(seconds)
            remaining = estimate_left(seconds, len(missing) - ended, jobs)
            print_line(f"attacked {name} ({ended}/{len(missing)}){remaining}{announcement}")
    attacked_runs = {task.row.run for task in tasks}
    return [row for row in update_bench(folder) if row.run in attacked_runs]


def attack_cell(tasks: Sequence[CellTask]) -> str:
    """Attack one cell in every way asked for, in turn; return its name."""
    torch.set_num_threads(1)
    for task in tasks:
        catch_up(task.folder, task.attack_settings, title=task.folder.name)
    return tasks[0].folder.name


def hold_to_task(task: CellTask) -> BenchRow:
    """Return a cell's row with the worst of the attacks that were asked for, if any worked."""
    results = requested_results(task.folder, task.attack_settings) or []
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


def format_budgets(
    rows: Sequence[BenchRow], swept_rows: Sequence[BenchRow], budgets: Sequence[float]
) -> str:
    """Return the table of larger budgets, and which variants have none; nothing without budgets.

    Args:
        rows: Those that are compared.
        swept_rows: Those of bench.json that were attacked with larger budgets.
        budgets: The larger budgets.
    """
    if not budgets:
        return ""
    text = ""
    if swept_rows:
        table = format_markdown(make_sweeps_table(find_sweeps(swept_rows)))
        text = f"\n**The worst attack with larger budgets, one seed**\n\n{table}\n"
    attacked_variants = first_attacked_seeds(rows)
    lacking = dict.fromkeys(row.name for row in rows if row.variant not in attacked_variants)
    if lacking:
        text += f"\nNo larger budgets, as no attack rebuilt images there: {', '.join(lacking)}.\n"
    return text


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
