"""One cell of a bench: what it still needs, and why it failed where it did."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import torch
from pydantic import FiniteFloat

from fedcel.errors import FailedError, FedcelError, RunError, describe_origin, describe_unforeseen
from fedcel.files import write_json
from fedcel.json_records import Record
from fedcel.runs import run_folder
from fedcel.settings import Scalar, Settings, dump_settings, flatten_settings
from sims.attacking import catch_up
from sims.bench.scenario import Cell
from sims.bench.training_cost import measure_step_ratio
from sims.engines.simulate import simulate
from sims.results.attack_results import lacking_settings, requested_results
from sims.results.file_names import COST_FILE, RESULT_FILE

MAX_NAMED = 3  # things that a sentence names
Differences = dict[str, tuple[Scalar, Scalar]]
"""Settings in which a run differs from those asked for: its value, and the other."""


class TrainingCost(Record):
    """Cost of a training step of a cell, relative to one of plain cross-entropy."""

    train_step_ratio: FiniteFloat


def is_finished(folder: Path, cell: Cell) -> bool:
    """Whether a cell is trained and attacked; RunError if the folder is of other settings.

    An attack that failed there where nobody foresaw it is to be tried again.
    """
    if not run_folder.is_run(folder):
        return False
    differences = find_differences(run_folder.read_settings(folder), cell.settings)
    if differences:
        raise RunError(
            f"{folder} was made with other settings: {describe_differences(differences)}; "
            f"choose another --out or remove it{suggest_attack(folder, differences)}"
        )
    return is_complete(folder, cell) and lacking_settings(folder, cell.settings.attack) is None


def is_complete(place: Path, cell: Cell) -> bool:
    """Whether a cell's folder has every file of a row, with the attacks of its settings."""
    return (place / COST_FILE).exists() and requested_results(
        place, cell.settings.attack
    ) is not None


def find_differences(trained: Settings, requested: Settings) -> Differences:
    """Return the settings in which a run differs from those asked for, with both values.

    Any engine goes on with another's run, and how often the leak is measured changes no model.
    """
    old, new = (flatten_settings(dump_settings(settings)) for settings in (trained, requested))
    free = {"engine", "local.at-once", "bits-every"}
    return {key: (old[key], new[key]) for key in new if key not in free and old[key] != new[key]}


def describe_differences(differences: Differences) -> str:
    """Return the first settings that differ, and how many more do."""
    return describe_list(
        [f"{key} is {old!r} there, {new!r} here" for key, (old, new) in differences.items()]
    )


def describe_list(names: Sequence[str]) -> str:
    """Return the first of several things, and how many more there are."""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"{', '.join(names[:MAX_NAMED])}{more}"


def suggest_attack(folder: Path, differences: Differences) -> str:
    """Return how a finished run is attacked in another way, where nothing else is asked for."""
    if not all(key.startswith("attack.") for key in differences):
        return ""
    arguments = [
        part for key, (_, new) in differences.items() for part in ("--set", f"{key}={new}")
    ]
    return (
        f". Attacks are added without training again: `fedcel attack {folder} "
        f"{shlex.join(arguments)}`"
    )


def run_cell(cell: Cell, folder: Path) -> None:
    """Train and attack one cell, as far as it is not."""
    train_cell(cell, folder)
    place = folder / "runs" / cell.name
    catch_up(place, cell.settings.attack, title=cell.name)
    if not (place / COST_FILE).exists():
        cost = TrainingCost(train_step_ratio=measure_step_ratio(cell.settings))
        write_json(place / COST_FILE, cost.to_json())


def train_cell(cell: Cell, folder: Path) -> None:
    """Train one cell, as far as it is not."""
    torch.set_num_threads(1)
    place = folder / "runs" / cell.name
    if not (place / RESULT_FILE).exists():
        simulate(
            cell.settings,
            place,
            resume=run_folder.is_run(place),
            title=cell.name,
            shows_notes=False,  # the bench says it once
        )


def wrap_error(error: Exception) -> FedcelError:
    """Return an error as one of fedcel's own kinds, with where it rose if nobody foresaw it.

    A user's exception may not come through a pipe between processes.
    """
    if isinstance(error, FedcelError):
        kinds = (k for k in type(error).__mro__ if issubclass(k, FedcelError))
        return next(k for k in kinds if k.__module__ == FedcelError.__module__)(str(error))
    return FailedError(f"{describe_unforeseen(error)} ({describe_origin(error)})")
