"""What earlier calls of a bench left in its folder, and what of it stays."""

from collections.abc import Sequence
from pathlib import Path

from fedcel.errors import RunError
from fedcel.files import read_json
from fedcel.runs import run_folder
from fedcel.settings import Settings
from sims.bench.run_cell import describe_differences, describe_list, find_differences
from sims.bench.scenario import Cell, Scenario, Variant
from sims.report.read import FAILED
from sims.results.attack_results import Rows
from sims.results.matched_accuracy import row_seed
from sims.results.worst_attack import row_point

FREE = ("seed", "engine")
"""What runs that one mean is of may differ in; any engine goes on with another's run."""


def other_rows(cells: Sequence[Cell], folder: Path) -> Rows:
    """Return the rows of bench.json of finished cells that are not among `cells`.

    A cell whose run was removed is finished no more. RunError when bench.json is damaged.
    """
    asked = {f"runs/{cell.name}" for cell in cells}
    return [
        row
        for row in read_records(folder / "bench.json", "variant", "run", "seed")
        if row["run"] not in asked and (folder / str(row["run"]) / "result.json").exists()
    ]


def read_records(path: Path, *needed: str) -> Rows:
    """Return a file's list of objects, none where it is missing; RunError when it is damaged."""
    found = read_json(path) if path.exists() else []
    known = isinstance(found, list) and all(isinstance(each, dict) for each in found)
    if isinstance(found, list) and known and all(each.keys() >= {*needed} for each in found):
        return found
    raise RunError(f"{path} is damaged: a list of objects with {', '.join(needed)}; remove it")


def refuse_foreign(scenario: Scenario, cells: Sequence[Cell], folder: Path) -> None:
    """RunError when finished cells of earlier calls are no part of the table that is asked for.

    The scenario has no such variant or strength, or other settings for it than those cells have.
    """
    stay, known = other_rows(cells, folder), number_points(scenario)
    strangers = [str(row["run"]) for row in stay if row_point(row) not in known]
    if strangers:
        raise RunError(
            f"{folder} has finished cells that {scenario.path} has not: "
            f"{describe_list(strangers)}; choose another --out, or remove their folders to "
            "leave them out"
        )
    alike = {(cell.variant.name, cell.strength): cell.settings for cell in reversed(cells)}
    for row in stay:
        asked, place = alike.get(row_point(row)), folder / str(row["run"])
        if asked is None:
            continue
        others = find_differences(run_folder.read_settings(place), asked)
        wrong = {key: values for key, values in others.items() if key not in FREE}
        if wrong:
            raise RunError(
                f"{place} of an earlier call, which stays in the table, was made with other "
                f"settings: {describe_differences(wrong)}; choose another --out or remove it"
            )


def list_points(scenario: Scenario) -> list[tuple[Variant, float | None]]:
    """Return each variant with each of its strengths, as the scenario has them."""
    found: list[tuple[Variant, float | None]] = []
    for variant in scenario.variants:
        strengths: list[float | None] = [*variant.strengths] or [None]
        found += [(variant, strength) for strength in strengths]
    return found


def number_points(scenario: Scenario) -> dict[tuple[str, float | None], int]:
    """Return the place of each variant's name and strength in the scenario."""
    return {(variant.name, s): number for number, (variant, s) in enumerate(list_points(scenario))}


def sort_rows(rows: Rows, scenario: Scenario) -> Rows:
    """Return rows as the scenario has variants and strengths, then by seed, whoever made them."""
    place = number_points(scenario)
    return sorted(rows, key=lambda row: (place.get(row_point(row), len(place)), row_seed(row)))


def read_failures(scenario: Scenario, folder: Path) -> dict[str, str]:
    """Return why cells of the scenario failed, by name; RunError when failed.json is damaged."""
    names = (Cell(*each, Settings()).name for each in list_points(scenario))
    known = {name.rpartition("-")[0] for name in names}  # of any seed
    found = read_records(folder / FAILED, "cell", "reason")
    told = {str(each["cell"]): str(each["reason"]) for each in found}
    return {name: why for name, why in told.items() if name.rpartition("-")[0] in known}
