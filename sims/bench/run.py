"""Train and attack every cell of a scenario; go on where it stopped."""

import json
import statistics
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

from fedcel.errors import FedcelError, RunError, SettingsError
from fedcel.files import lock_file, read_json, write_json, write_whole
from fedcel.losses import defences
from fedcel.settings import Settings
from sims import report
from sims.bench import resume_bench
from sims.bench.run_cell import (
    COST,
    attempt_cell,
    describe_kill,
    describe_list,
    is_complete,
    is_finished,
)
from sims.bench.scenario import Cell, Scenario, is_anchored, is_undefended, refuse_fixed_sweeps
from sims.commands.progress import estimate_left, print_line
from sims.engines.process_pool import run_items, time_call
from sims.report.read import FAILED
from sims.results.attack_results import Rows, list_failures, own_rows
from sims.results.rows import gather_vectors
from sims.results.worst_attack import FAILED_ATTACKS, NAMED, REBUILT, worst_rows

COPIED = (
    "accuracy",
    "bits-beyond-label",
    "information-bits",
    "identification-optimal",
    "certificate-bits",
    "candidates",
)
OPTIONAL = (  # older runs lack some
    "bits-half-width",
    "certificate-bits-within-class",
    "within-class-spread",
    "answer-bits",
    "bits-cap",
    "identification-candidates",
    "label-only-identification",
    "encoder-parameters",
    "flops-per-inference",
    "bytes-per-inference",
    "update-epsilon",
    "update-epsilon-of-models",
)
LOCK = ".bench.json.lock"


def run_bench(scenario: Scenario, cells: list[Cell], folder: Path, jobs: int = 1) -> Path:
    """Return the report of all cells, each trained and attacked once, whatever interrupts.

    SettingsError for several jobs on an engine that is parallel itself, and for a swept
    setting that is overridden; RunError when a cell's folder holds a run of other settings, and
    when cells of earlier calls cannot stand beside these, see `earlier.refuse`. What else is wrong
    with a cell does not keep the others from being trained and reported: it is named in
    failed.json and the report, and raised at the end, as the kind of the first cell's.
    """
    refuse_fixed_sweeps(cells)
    engines = sorted({cell.settings.engine for cell in cells} - {"loop"})
    if jobs > 1 and engines:
        raise SettingsError(
            f"--jobs is {jobs}: engine {engines[0]!r} is parallel itself; add --engine loop"
        )
    missing = [cell for cell in cells if not is_finished(folder / "runs" / cell.name, cell)]
    resume_bench.refuse_foreign(scenario, cells, folder)
    make_rows(cells, folder)  # damage is named before the work
    write_whole(folder / "scenario.toml", scenario.path.read_text())
    print_line(f"run: {folder}")
    say_known(cells, missing, folder)
    failed = finish_cells(scenario, cells, missing, folder, jobs)
    found = write_bench(scenario, cells, folder, failed)
    if not failed:
        return report.write_report(folder)
    others = f"the others are in {report.write_report(folder)}" if found else "no cell is finished"
    first = next(iter(failed.values()))
    raise type(first)(f"{describe_list(list(failed))} failed, the reasons are above; {others}")


def say_known(cells: list[Cell], missing: list[Cell], folder: Path) -> None:
    """Say what is there already of the cells, and of others."""
    if len(missing) < len(cells):
        print_line(
            f"{len(cells) - len(missing)} of {len(cells)} cells are finished already: skipped"
        )
    again = sum(is_complete(folder / "runs" / cell.name, cell) for cell in missing)
    if again:
        which = "failed or are of an earlier version"
        print_line(f"{again} of {len(cells)} cells have attacks that {which}: run again")
    stay = len(resume_bench.other_rows(cells, folder))
    if stay:
        print_line(f"finished cells of earlier calls that stay in the table: {stay}")


def finish_cells(
    scenario: Scenario, cells: list[Cell], missing: list[Cell], folder: Path, jobs: int
) -> dict[str, FedcelError]:
    """Train and attack the missing cells; return why those that failed did, in their order."""
    failed: dict[str, FedcelError] = {}
    seconds: list[float] = []
    task = partial(time_call, partial(attempt_cell, folder=folder))
    with closing(run_items(task, missing, jobs, describe_kill)) as running:
        for number, ((name, error), spent) in enumerate(running, 1):
            if error:
                failed[name] = error
            else:
                seconds.append(spent)
            ended = f"{name} failed: {error}" if error else f"finished {name}"
            remaining = estimate_left(seconds, len(missing) - number, jobs)
            print_line(f"{ended} ({number}/{len(missing)}){remaining}")
            write_bench(scenario, cells, folder, failed)
    return {cell.name: failed[cell.name] for cell in missing if cell.name in failed}


def write_bench(
    scenario: Scenario, cells: list[Cell], folder: Path, failed: Mapping[str, FedcelError]
) -> Rows:
    """Write what is finished and what failed, each whole; return the rows of bench.json.

    What earlier calls left of cells that were not asked for stays, in the scenario's order.
    """
    with lock_file(folder / LOCK):  # another call may finish other seeds meanwhile
        found = resume_bench.sort_rows(
            [*make_rows(cells, folder), *resume_bench.other_rows(cells, folder)], scenario
        )
        reasons = resume_bench.read_failures(scenario, folder)
        reasons |= {name: str(error) for name, error in failed.items()}
        for row in found:
            reasons.pop(Path(str(row["run"])).name, None)  # as it says, it is in the table
        told = [{"cell": name, "reason": reason} for name, reason in reasons.items()]
        write_json(folder / FAILED, told)
        write_json(folder / "bench.json", found)
        if found:
            gather_vectors(folder)
    return found


def make_rows(cells: list[Cell], folder: Path) -> Rows:
    """Return the cells' part of bench.json: a row for each that is finished."""
    bare: dict[int, Settings] = {}
    for cell in cells:
        if is_undefended(cell.strength, cell.settings):
            bare.setdefault(cell.settings.seed, cell.settings)
    found = []
    for cell in cells:
        place = folder / "runs" / cell.name
        if is_complete(place, cell):
            found.append(make_row(cell, place, folder, bare))
    return found


def make_row(
    cell: Cell, place: Path, folder: Path, bare: Mapping[int, Settings]
) -> dict[str, object]:
    """Return one cell's row; RunError when its files lack what a row needs.

    `bare` are the undefended settings of each seed, to say whose sweep begins there.
    """
    seed, attacks = cell.settings.seed, own_rows(place, cell.settings.attack) or []
    failed = list_failures(attacks)
    return {
        "variant": cell.variant.name,
        "title": cell.variant.title,
        "strength": cell.strength,
        "strength-key": cell.variant.strength_key,
        "undefended": is_undefended(cell.strength, cell.settings),
        "anchored": seed in bare and is_anchored(cell, bare[seed]),
        "seed": seed,
        "engine": cell.settings.engine,
        "noise": defences.build_cut(cell.settings).sigma,
        **measured_values(place, attacks),
        "run": str(place.relative_to(folder)),
    } | (
        {FAILED_ATTACKS: failed}
        if (failed := list_failures(own_rows(place, cell.settings.attack) or []))
        else {}
    )


def measured_values(place: Path, attacks: Rows) -> dict[str, object]:
    """Return what a row copies of a run's files; RunError when what it needs is not there.

    `attacks` are the rows that the cell's settings ask for: others are not run on every cell.
    """
    result, cost = read_json(place / "result.json"), read_json(place / COST)
    try:
        if not (isinstance(result, dict) and isinstance(cost, dict)):
            raise TypeError("objects are expected")
        known = {key: result[key] for key in OPTIONAL if key in result}
        copied = {key: result[key] for key in COPIED} | known
        ratio = {"train-step-ratio": cost["train-step-ratio"]}
        return copied | attention_share(place / "events.jsonl") | worst_scores(attacks) | ratio
    except (KeyError, TypeError, ValueError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise RunError(
            f"{place}: result.json, {COST}, attacks or events.jsonl is damaged: {what}; "
            "remove the folder"
        ) from None


def attention_share(path: Path) -> dict[str, object]:
    """Return n_eff/n of the attention in the last round in which it acted, if it ever did.

    That is before the encoder is frozen: afterwards no loss acts on it.
    """
    key = "attention-share"
    events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return next(({key: event[key]} for event in reversed(events) if key in event), {})


def worst_scores(attacks: Rows) -> dict[str, object]:
    """Return the scores of the trained attack that rebuilt images best, mean over its seeds."""
    name, counted = worst_rows(attacks)

    def mean(key: str) -> float | None:
        if not counted or (key == "ssim" and key not in counted[0]):  # images of a pixel or two
            return None
        return statistics.fmean(float(str(e[key])) for e in counted)

    first = counted[0] if counted else {}
    named = {f"worst-{key}": first.get(key) for key in NAMED} | {"worst-attack": name}
    return {**named, **{key: mean(key) for key in REBUILT}}
