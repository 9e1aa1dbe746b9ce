"""Rows and failures that earlier calls of a bench left in its folder."""

from collections.abc import Sequence
from pathlib import Path

from fedcel.errors import RunError
from fedcel.runs import run_folder
from fedcel.settings import Settings
from sims.bench.run_cell import describe_differences, describe_list, find_differences
from sims.bench.scenario import Cell, Scenario, list_points
from sims.results.file_names import BENCH_FILE, FAILED_FILE, RESULT_FILE
from sims.results.record_files import read_records
from sims.results.records import BenchRow, FailedCell


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
            f"{describe_list(strangers)}; choose another --out, or remove their folders to "
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


def sort_rows(rows: Sequence[BenchRow], scenario: Scenario) -> list[BenchRow]:
    """Return rows as the scenario has variants and strengths, then by seed, whoever made them."""
    places = number_points(scenario)
    return sorted(rows, key=lambda row: (places.get(row.point, len(places)), row.seed))


def read_failures(scenario: Scenario, folder: Path) -> dict[str, str]:
    """Return why cells of the scenario failed, by name; RunError when failed.json is damaged."""
    names = (Cell(*point, Settings()).name for point in list_points(scenario))
    cells = {name.rpartition("-")[0] for name in names}  # of any seed
    failures = read_records(folder / FAILED_FILE, FailedCell, "remove it")
    return {f.cell: f.reason for f in failures if f.cell.rpartition("-")[0] in cells}
