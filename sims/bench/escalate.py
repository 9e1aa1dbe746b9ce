"""Trained attacks where they decide: at matched accuracy, and there again with larger budgets."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float

from fedcel.attacks import REVISION, list_entries, parse_attacks
from fedcel.errors import SettingsError
from fedcel.files import lock_file, write_json
from fedcel.runs import per_image, run_folder
from fedcel.settings import AttackSettings, Scalar
from sims.attacking.attack_run import catch_up
from sims.commands.overrides import override_group
from sims.commands.progress import estimate_left, print_line
from sims.engines.process_pool import run_items, time_call
from sims.report.budgets import find_sweeps, make_sweeps_table
from sims.report.matched_table import describe_failed_attacks, describe_intervals, make_anchor_lines
from sims.report.read import ESCALATED
from sims.report.records import Escalated
from sims.report.table import format_markdown, make_table
from sims.report.table_columns import Column, format_spread, select_numbers
from sims.report.text import DASH
from sims.results.attack_results import lacking_settings, list_failures, own_rows
from sims.results.intervals import mean_samples, resample_rows
from sims.results.matched_accuracy import (
    BITS,
    Row,
    row_seed,
    row_strength,
    row_values,
    undefended_rows,
)
from sims.results.rows import (
    gather_vectors,
    read_bench_rows,
    read_escalated,
    worst_image_scores,
)
from sims.results.worst_attack import (
    ANCHORS,
    FAILED_ATTACKS,
    NAMED,
    TRAINING,
    AttackId,
    attack_id,
    taken_scores,
    worst_rows,
)

SCORES = ("mse", "psnr", "ssim", "identification-1", "identification-5", "label-accuracy")
ERROR = Column("mse", "MSE", 4)
SAME = ("variant", "strength", "seed", "budget", "revision")
"""What two rows of escalated.json agree in where one replaces the other."""
LESS = ("attack", "knowledge", "targets")
"""What the one that gives way may lack; the attack where all of them failed."""
COLUMNS = (
    Column("accuracy", "accuracy, %", 1, 100),
    Column(BITS, "bits beyond label", 2),
    Column("identification-optimal", "optimal identification, %", 1, 100),
    ERROR,
    Column("psnr", "PSNR, dB", 1),
    Column("ssim", "SSIM", 3),
    Column("identification-1", "right image, %", 1, 100),
    Column("identification-5", "among five, %", 1, 100),
    Column("label-accuracy", "label read, %", 1, 100),
)


class Task(NamedTuple):
    """One cell to attack: its row of bench.json, its folder, with what."""

    row: Row
    place: Path
    how: AttackSettings


def escalate(
    folder: Path,
    given: dict[str, Scalar],
    loss: float,
    budgets: Sequence[float],
    jobs: int = 1,
    every: bool = False,
) -> str:
    """Return the Markdown of trained attacks on a bench's cells at `loss` points of accuracy.

    Each variant is attacked, all seeds of it, at the strength whose mean accuracy is nearest to the
    undefended net's less `loss`, or with `every` at all its strengths; then, there, the attack that
    rebuilt images best once more with each of `budgets`, on the variant's first seed. What was
    attacked before is not attacked again. Rows of earlier calls stay in escalated.json, but for
    those of the same cell, attack, budget and knowledge; each attack has its own. RunError when the
    bench or a run in it is missing or damaged, SettingsError when `given` is of other settings.
    """
    if not 0 <= loss < 100:
        raise SettingsError(f"--loss is {loss:g}, must be points of accuracy below 100, as 2")
    check_attacks(str(given.get("attack.names", "")))
    cells = read_bench_rows(folder)
    rows = nearest_rows(cells, loss)
    more = [row for row in cells if row not in rows] if every else []
    tasks = [plan_task(folder, row, given) for row in (*rows, *more)]
    attack_cells(tasks, jobs, ", then larger budgets" if budgets else "")
    scores = [score_cell(each) for each in tasks]
    keep_scores(folder, list(chain(*scores)))  # before the larger budgets, which take longest
    first = [each[0] for each in scores[: len(rows)]]
    higher = attack_cells(plan_budgets(folder, first, tasks, given, budgets), jobs)
    larger_ones = list(chain(*map(score_cell, higher)))
    keep_scores(folder, larger_ones)
    again = resample_rows(first, {str(row["run"]): cell_vectors(folder, row) for row in first})
    told = format_table(first, again, loss)
    if not higher:
        return told
    found = budget_table([*first, *larger_ones])
    return f"{told}\n**The worst attack with larger budgets, one seed**\n\n{found}\n"


def check_attacks(names: str) -> None:
    """Refuse attacks none of which rebuilds images from one inference; '' are the runs' own."""
    found = (
        [attack for attack, repeats in parse_attacks(names) if attack and repeats == 1]
        if names
        else []
    )
    if names and all(attack.observes == TRAINING for attack in found):
        raise SettingsError(
            f"attack.names is {names!r}: none of these rebuilds images from one inference, and "
            "nothing else is compared here; name one that does, as 'decoder'"
        )


def plan_budgets(
    folder: Path,
    scores: Sequence[Row],
    tasks: Sequence[Task],
    given: Mapping[str, object],
    budgets: Sequence[float],
) -> list[Task]:
    """Return the tasks of each variant's first seed again, its worst attack with each budget."""
    one = first_seeds(scores)
    return [
        plan_task(folder, row, {**given, "attack.names": name, "attack.budget": budget})
        for row, each in zip(scores, tasks, strict=False)
        if row.get("attack") and row_seed(row) == one[str(row["variant"])]
        for name in [entry_of(str(row["attack"]), each.how.names)]
        for budget in budgets
    ]


def keep_scores(folder: Path, new: Sequence[Row]) -> None:
    """Write what was scored beside what earlier calls scored, and image by image."""
    with lock_file(folder / f".{ESCALATED}.lock"):
        stay = [
            row
            for row in read_escalated(folder)
            if not any(is_replaced_by(row, one) for one in new)
        ]
        write_json(folder / ESCALATED, [*stay, *new])
        gather_vectors(folder)


def nearest_rows(rows: Sequence[Row], loss: float) -> list[Row]:
    """Return the rows of each variant's strength nearest to the undefended accuracy less `loss`.

    The mean over seeds of what each costs beside the first undefended variant of its seed.
    """
    groups: dict[str, dict[float, list[Row]]] = {}
    for row in rows:
        groups.setdefault(str(row["variant"]), {}).setdefault(row_strength(row), []).append(row)
    bare = undefended_rows(rows)

    def away(group: Sequence[Row]) -> float:
        lost = [bare[row_seed(row)]["accuracy"] - row_values(row)["accuracy"] for row in group]
        return abs(fmean(lost) - loss / 100)

    return [row for group in groups.values() for row in min(group.values(), key=away)]


def first_seeds(rows: Sequence[Row]) -> dict[str, int]:
    """Return each variant's smallest seed: that of another may have diverged."""
    last_first = sorted(rows, key=row_seed, reverse=True)
    return {str(row["variant"]): row_seed(row) for row in last_first}


def plan_task(folder: Path, row: Row, given: Mapping[str, object]) -> Task:
    """Return a cell's attack: the run's own attack settings, changed by those given."""
    place = folder / str(row["run"])
    wanted = {key: value for key, value in given.items() if isinstance(value, str | int | float)}
    return Task(
        row, place, override_group(run_folder.read_settings(place), wanted, "attack").attack
    )


def attack_cells(tasks: Sequence[Task], jobs: int, then: str = "") -> Sequence[Task]:
    """Attack each cell with what it lacks (`lacking_settings`); `then` is told of what follows."""
    missing: dict[Path, list[Task]] = {}
    for each in tasks:
        if lacking_settings(each.place, each.how) is not None:
            missing.setdefault(each.place, []).append(each)
    seconds: list[float] = []
    with closing(
        run_items(partial(time_call, attack_cell), list(missing.values()), jobs)
    ) as running:
        for name, spent in running:
            seconds.append(spent)
            ended = len(seconds)
            rest = estimate_left(seconds, len(missing) - ended, jobs)
            print_line(f"attacked {name} ({ended}/{len(missing)}){rest}{then}")
    return tasks


def attack_cell(tasks: Sequence[Task]) -> str:
    """Attack one cell in every way asked for, in turn: they write to one file; return its name."""
    torch.set_num_threads(1)
    for each in tasks:
        catch_up(each.place, each.how, title=each.place.name)
    return tasks[0].place.name


def entry_of(attack: str, names: str) -> str:
    """Return the entry of `attack.names` that made an attack: an own one has another name."""
    return next(entry for entry, name in list_entries(names) if name == attack)


def is_replaced_by(old: Row, new: Row) -> bool:
    """Say whether a new row of escalated.json replaces an old one, which may say less of itself."""
    same = all(old.get(key) == new.get(key) for key in SAME)
    return same and all(old.get(key) in (None, new.get(key)) for key in LESS)


def cell_vectors(folder: Path, row: Row) -> dict[str, Float[np.ndarray, " T"]]:
    """Return all that is known image by image of the cell that a row scores."""
    place = folder / str(row["run"])
    found = per_image.read_vectors(place) | worst_image_scores(place, {**row, **taken_scores(row)})
    return {key: value.double().numpy() for key, value in found.items()}


def score_cell(each: Task) -> list[dict[str, object]]:
    """Return a cell's rows, one for each attack; first that which rebuilt images best in it.

    One that names no attack where none could be carried out.
    """
    found = own_rows(each.place, each.how) or []
    tried: dict[AttackId, list[Row]] = {}
    for row in found:
        if "mse" in row and attack_id(row).on_one_inference:
            tried.setdefault(attack_id(row), []).append(row)
    worst, counted = worst_rows(found)
    others = [rows for rows in tried.values() if rows != counted]
    return [attack_row(each, rows) for rows in ([counted, *others] if worst else [[]])]


def attack_row(each: Task, counted: Sequence[Row]) -> dict[str, object]:
    """Return a cell's row with the scores of one attack, mean over its seeds."""
    dropped = {*SCORES, *(f"worst-{key}" for key in NAMED), FAILED_ATTACKS}
    kept = {key: value for key, value in each.row.items() if key not in dropped}
    wanted = (*SCORES, *ANCHORS)
    means_of = {key: fmean(values) for key in wanted if (values := select_numbers(counted, key))}
    first = counted[0] if counted else {}
    named = {"attack": first.get("attack"), "targets": first.get("targets")}
    named["picked-among"] = first.get("identification-candidates")
    given = {"budget": each.how.budget, "knowledge": each.how.knowledge, "revision": REVISION}
    lost = {FAILED_ATTACKS: list_failures(own_rows(each.place, each.how) or [])}
    return kept | means_of | named | given | (lost if lost[FAILED_ATTACKS] else {})


def format_table(base: Sequence[Row], again: Sequence[Sequence[Row]], loss: float) -> str:
    """Return the table; `again` are its rows in bootstrap samples of the images."""
    groups: dict[str, list[int]] = {}
    for number, row in enumerate(base):
        groups.setdefault(str(row["variant"]), []).append(number)
    head = ["variant", *(column.head for column in COLUMNS), "worst attack"]
    known = [[*cells, DASH] for cells in make_anchor_lines(base, COLUMNS)]
    body = [
        variant_line([base[i] for i in group], [[each[i] for i in group] for each in again])
        for group in groups.values()
    ]
    told = make_table("Trained attacks", head, [*body, *known])
    return (
        f"**Trained attacks, each variant where it is nearest to {loss:g} points below the "
        f"undefended accuracy**{describe_targets(base)}{describe_intervals(again)}"
        f"{describe_failed_attacks(base)}\n\n{format_markdown(told)}\n"
    )


def describe_targets(rows: Sequence[Row]) -> str:
    """Say of how many targets the scores are, and among how many the right one was looked for."""
    targets = " or ".join(sorted({str(row["targets"]) for row in rows if row.get("targets")}))
    among = {row["picked-among"] for row in rows if isinstance(row.get("picked-among"), int)}
    optimal = {row.get("identification-candidates") for row in rows}
    said = f" Rebuilt: {targets} targets" if targets else ""
    if among and None not in optimal and among != optimal:
        few, all_ = (" or ".join(sorted(map(str, each))) for each in (among, optimal))
        said += f", the right one looked for among {few}; the optimal attacker's among {all_}"
    return f"{said}." if said else ""


def variant_line(group: Sequence[Row], again: Sequence[Sequence[Row]]) -> list[str]:
    """Return one variant's line: means over seeds, with intervals over seeds and images."""
    swept = group[0].get("strength")
    title = str(group[0].get("title", group[0]["variant"]))
    cells = [
        format_spread(c, select_numbers(group, c.key), mean_samples(again, c.key)) for c in COLUMNS
    ]
    names = sorted({str(row["attack"]) for row in group if row.get("attack")})
    return [title if swept is None else f"{title}, {swept:g}", *cells, " / ".join(names) or DASH]


def budget_table(found: Iterable[Row]) -> str:
    """Return the MSE at each budget of the variants that were attacked with several."""
    rows = (Escalated.model_validate(dict(row)) for row in found)
    return format_markdown(make_sweeps_table(find_sweeps(rows)))
