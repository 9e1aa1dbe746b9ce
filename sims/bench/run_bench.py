"""Train and attack every cell of a scenario; go on where it stopped."""

import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

from fedcel.data import load_splits
from fedcel.errors import FedcelError, RunError, SettingsError, join_first
from fedcel.files import lock_file, write_json, write_whole
from fedcel.runs import hold_folder, run_folder
from fedcel.settings import Settings
from sims import report
from sims.bench.run_cell import (
    MAX_NAMED,
    TrainingCost,
    describe_differences,
    find_differences,
    finish_cells,
    is_complete,
    is_finished,
)
from sims.bench.scenario import Cell, Scenario, is_anchored, list_points, refuse_fixed_sweeps
from sims.engines.choose_engine import choose_engine
from sims.engines.simulate import print_notes
from sims.progress import estimate_left, print_line, show_waiting
from sims.results.bench_rows import BENCH_LOCK, write_bench_rows
from sims.results.records import (
    BENCH_FILE,
    COST_FILE,
    EVENTS_FILE,
    FAILED_FILE,
    PLAN_FILE,
    RESULT_FILE,
    BenchPlan,
    BenchRow,
    FailedCell,
    RunMeasures,
    RunResult,
    parse_events,
    parse_file,
    read_record,
    read_records,
)

REMEDY = "remove the folder and bench it again"


def run_bench(scenario: Scenario, cells: list[Cell], folder: str | Path, jobs: int = 1) -> Path:
    """Train and attack all cells, each once, whatever interrupts; return the report's path.

    A cell that fails does not keep the others from being trained and reported: its reason stands
    in failed.json and the report, and the first cell's kind of error is raised at the end.

    The folder is new, or one to go on with; `jobs` cells are trained at the same time.

    Raises:
        SettingsError: For several jobs on an engine that is parallel itself, and for a swept
            setting that is overridden.
        DataError: For images that no cell could read.
        RunError: When a cell's folder holds a run of other settings, when cells of earlier calls
            cannot stand beside these, see `refuse_foreign`, and when another process
            writes into the folder.
    """
    folder = Path(folder)
    refuse_fixed_sweeps(cells)
    if jobs > 1 and any(choose_engine(cell.settings).name == "ray" for cell in cells):
        raise SettingsError(
            f"--jobs is {jobs}: engine 'ray' is parallel itself; add --engine local"
        )
    missing = [cell for cell in cells if not is_finished(folder / "runs" / cell.name, cell)]
    refuse_foreign(scenario, cells, folder)
    make_rows(cells, folder)  # damage is named before the work
    refuse_unreadable_data(missing)
    with hold_folder(folder):
        write_whole(folder / "scenario.toml", scenario.path.read_text())
        plan = BenchPlan(
            began=time.time(),
            cells=tuple(cell.name for cell in cells),
            missing=tuple(cell.name for cell in missing),
            jobs=jobs,
        )
        write_json(folder / PLAN_FILE, plan.to_json())
        print_line(f"run: {folder}")
        print_finished(cells, missing, folder)
        with suppress(FedcelError):  # the cells say why they fail
            print_notes(cell.settings for cell in missing)
        failed = finish_missing(scenario, cells, missing, folder, jobs=jobs)
        rows = write_bench(scenario, cells, folder, failed)
        page = report.write_report(folder) if rows or not failed else None
    if page and not failed:
        return page
    finished = f"the others are in {page}" if page else "no cell is finished"
    first = next(iter(failed.values()))
    raise type(first)(
        f"{join_first(list(failed), MAX_NAMED)} failed, the reasons are above; {finished}"
    )


def refuse_unreadable_data(cells: Sequence[Cell]) -> None:
    """Raise the error with which every cell would fail: they share images that cannot be read."""
    shared = {(cell.settings.data, cell.settings.clients) for cell in cells}
    if len(shared) == 1:
        with show_waiting("reading the images"):
            load_splits(*shared.pop(), cells[0].settings.seed)


def print_finished(cells: list[Cell], missing: list[Cell], folder: Path) -> None:
    """Print how many cells are finished already, and how many others stay in the table."""
    if len(missing) < len(cells):
        print_line(
            f"{len(cells) - len(missing)} of {len(cells)} cells are finished already: skipped"
        )
    again = sum(is_complete(folder / "runs" / cell.name, cell) for cell in missing)
    if again:
        which = "failed or are of an earlier version"
        print_line(f"{again} of {len(cells)} cells have attacks that {which}: run again")
    stay = len(other_rows(cells, folder))
    if stay:
        print_line(f"finished cells of earlier calls that stay in the table: {stay}")


def finish_missing(
    scenario: Scenario, cells: list[Cell], missing: list[Cell], folder: Path, *, jobs: int
) -> dict[str, FedcelError]:
    """Train and attack the missing cells; return why those that failed did, in their order."""
    failed: dict[str, FedcelError] = {}
    seconds: list[float] = []
    begin = time.monotonic()
    with closing(finish_cells(missing, folder, jobs)) as outcomes:
        for number, (cell, error) in enumerate(outcomes, 1):
            last, begin = begin, time.monotonic()
            if error:
                failed[cell.name] = error
            else:
                seconds.append(begin - last)
            ended = f"{cell.name} failed: {error}" if error else f"finished {cell.name}"
            remaining = estimate_left(seconds, len(missing) - number)
            print_line(f"{ended} ({number}/{len(missing)}){remaining}")
            write_bench(scenario, cells, folder, failed)
    return {cell.name: failed[cell.name] for cell in missing if cell.name in failed}


def write_bench(
    scenario: Scenario, cells: list[Cell], folder: Path, failed: Mapping[str, FedcelError]
) -> list[BenchRow]:
    """Write what is finished and what failed, each whole; return the rows of bench.json.

    What earlier calls left of cells that were not asked for stays, in the scenario's order.
    """
    with lock_file(folder / BENCH_LOCK):
        places = number_points(scenario)
        rows = sorted(
            [*make_rows(cells, folder), *other_rows(cells, folder)],
            key=lambda row: (places.get(row.point, len(places)), row.seed),
        )
        reasons = read_failures(scenario, folder)
        reasons |= {name: str(error) for name, error in failed.items()}
        for row in rows:
            reasons.pop(Path(row.run).name, None)  # as it says, it is in the table
        failures = [FailedCell(cell=name, reason=reason) for name, reason in reasons.items()]
        write_json(folder / FAILED_FILE, [failure.to_json() for failure in failures])
        return write_bench_rows(folder, rows)


def make_rows(cells: Sequence[Cell], folder: Path) -> list[BenchRow]:
    """Return a row for each cell that is finished; its attacks are not in it yet."""
    undefended = {
        cell.settings.seed: cell.settings
        for cell in reversed(cells)  # the first of each seed stays
        if cell.is_undefended
    }
    return [
        make_row(cell, folder, undefended)
        for cell in cells
        if is_complete(folder / "runs" / cell.name, cell)
    ]


def make_row(cell: Cell, folder: Path, undefended: Mapping[int, Settings]) -> BenchRow:
    """Make the row of a complete cell from its run folder; RunError where files lack values.

    `undefended` are each seed's undefended settings: the sweep of some cells begins there.
    """
    place = folder / "runs" / cell.name
    seed = cell.settings.seed
    result = read_record(place / RESULT_FILE, RunResult, REMEDY)
    cost = read_record(place / COST_FILE, TrainingCost, REMEDY)
    return BenchRow.model_validate(
        {
            "variant": cell.variant.name,
            "title": cell.variant.title,
            "strength": cell.strength,
            "strength-key": cell.variant.strength_key,
            "undefended": cell.is_undefended,
            "anchored": seed in undefended and is_anchored(cell, undefended[seed]),
            "seed": seed,
            "engine": result.engine or cell.settings.engine,
            "noise": cell.settings.defence.find_sigma(cell.settings.net),
            **result.model_dump(include={*RunMeasures.model_fields}, exclude_unset=True),
            **attention_share(place / EVENTS_FILE),
            "train-step-ratio": cost.train_step_ratio,
            "run": str(place.relative_to(folder)),
            "attacks": (),
        }
    )


def attention_share(path: Path) -> dict[str, float]:
    """Return n_eff/n of the attention in the last round in which it acted, if it ever did.

    That is before the encoder is frozen: afterwards no loss acts on it.
    """
    events = parse_file(path, parse_events, REMEDY) if path.exists() else ()
    shares = (event.attention_share for event in reversed(events))
    return next(({"attention-share": share} for share in shares if share is not None), {})


def other_rows(cells: Sequence[Cell], folder: Path) -> list[BenchRow]:
    """Return the rows of bench.json of finished cells that are not among `cells`.

    A cell whose run was removed is finished no more. RunError when bench.json is damaged.
    """
    requested = {f"runs/{cell.name}" for cell in cells}
    return [
        row
        for row in read_records(folder / BENCH_FILE, BenchRow, "remove it")
        if row.run not in requested and (folder / row.run / RESULT_FILE).exists()
    ]


def refuse_foreign(scenario: Scenario, cells: Sequence[Cell], folder: Path) -> None:
    """RunError when finished cells of earlier calls are no part of the table that is asked for.

    The scenario has no such variant or strength, or other settings for it than those cells have.
    """
    rows = other_rows(cells, folder)
    points = number_points(scenario)
    strangers = [row.run for row in rows if row.point not in points]
    if strangers:
        raise RunError(
            f"{folder} has finished cells that {scenario.path} has not: "
            f"{join_first(strangers, MAX_NAMED)}; choose another --out, or remove their folders to "
            "leave them out"
        )
    settings = {(cell.variant.name, cell.strength): cell.settings for cell in reversed(cells)}
    for row in rows:
        requested = settings.get(row.point)
        place = folder / row.run
        if requested is None:
            continue
        wrong = find_differences(run_folder.read_settings(place), requested)
        wrong.pop("seed", None)  # one mean is of runs of several
        if wrong:
            raise RunError(
                f"{place} of an earlier call, which stays in the table, was made with other "
                f"settings: {describe_differences(wrong)}; choose another --out or remove it"
            )


def number_points(scenario: Scenario) -> dict[tuple[str, float | None], int]:
    """Return the place of each variant's name and strength in the scenario."""
    return {(variant.name, s): number for number, (variant, s) in enumerate(list_points(scenario))}


def read_failures(scenario: Scenario, folder: Path) -> dict[str, str]:
    """Return why cells of the scenario failed, by name; RunError when failed.json is damaged."""
    names = (Cell(*point, Settings()).name for point in list_points(scenario))
    cells = {name.rpartition("-")[0] for name in names}  # of any seed
    failures = read_records(folder / FAILED_FILE, FailedCell, "remove it")
    return {f.cell: f.reason for f in failures if f.cell.rpartition("-")[0] in cells}
