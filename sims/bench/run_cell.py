"""One cell of a bench: what it still needs, its training and attacks, and why it failed."""

import shlex
import statistics
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import FiniteFloat

from fedcel.data import load_splits
from fedcel.errors import (
    FailedError,
    FedcelError,
    RunError,
    describe_origin,
    describe_unforeseen,
    join_first,
)
from fedcel.federation import RoundRequest, RoundTrainer
from fedcel.files import write_json
from fedcel.json_records import Record
from fedcel.losses.cel import NoCEL
from fedcel.losses.defences import NoDefence
from fedcel.nets import CPU, fastest_device
from fedcel.posterior import RoundOrder
from fedcel.run_parts import build_client_parts
from fedcel.runs import run_folder
from fedcel.settings import Scalar, Settings, dump_settings, flatten_settings
from fedcel.tensors import State
from sims.attacking import catch_up
from sims.bench.scenario import Cell, is_defended
from sims.engines.choose_engine import choose_engine
from sims.engines.simulate import simulate
from sims.parallel_jobs import FEWER, KILLED, run_items
from sims.results.attack_results import lacking_settings, requested_results
from sims.results.records import COST_FILE, RESULT_FILE

MAX_NAMED = 3  # things that a sentence names
Differences = dict[str, tuple[Scalar, Scalar]]
"""Settings in which a run differs from those asked for: its value, and the other."""
REPETITIONS = range(3, 16)  # rounds of each, in turn, so that a drifting machine hits both alike
PATIENCE = 3.0
"""Seconds after which the fewest repeats are enough: long rounds scatter less."""
ATTACK_PROCESSES = 2
"""Of a bench on Ray: one is at work while the other is given the next trained cell."""


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
    names = [f"{key} is {old!r} there, {new!r} here" for key, (old, new) in differences.items()]
    return join_first(names, MAX_NAMED)


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


def measure_step_ratio(settings: Settings) -> float:
    """Return the median ratio of a round's time with the loss fully on to one without it.

    Of processor time, as other work may share the cores; on a GPU of the time that passes.
    """
    if not is_defended(settings):
        return 1.0
    off = {"cel": NoCEL(), "defence": NoDefence()}
    plain = settings.model_copy(update=off)
    _, state = time_round(settings, None)  # from then on, statistics are warm as in a real run
    ratios: list[float] = []
    begin = time.perf_counter()
    while len(ratios) < REPETITIONS.start or (
        len(ratios) < REPETITIONS.stop - 1 and time.perf_counter() - begin < PATIENCE
    ):
        without, _ = time_round(plain, None)
        with_loss, state = time_round(settings, state)
        ratios.append(with_loss / without)
    return statistics.median(ratios)


def time_round(settings: Settings, state: State | None) -> tuple[float, State | None]:
    """Return the time of one client's round after the ramp, and the loss's state after it."""
    number = max(1, round(settings.rounds * max(settings.cel.ramp, 0.01)))
    parts = load_splits(settings.data, settings.clients, settings.seed).clients
    total = sum(len(part.y) for part in parts)
    run_parts = build_client_parts(settings)
    flat = run_parts.workspace()
    plan = run_parts.schedule.plan(RoundOrder(number, total))
    request = RoundRequest(plan, flat.vector.clone(), {0: len(parts[0].y) / total})
    read_clock = time.process_time if fastest_device(flat.net) == CPU else time.perf_counter
    begin = read_clock()
    (update,) = RoundTrainer(run_parts, request, read_state=lambda client: state).train()
    return read_clock() - begin, update.state


class CellOutcome(NamedTuple):
    """End of a cell; an error where it failed."""

    cell: Cell
    error: FedcelError | None = None


def finish_cells(
    cells: Sequence[Cell], folder: Path, jobs: int = 1
) -> Generator[CellOutcome, None, None]:
    """Train and attack unfinished cells; yield each one's outcome as it ends.

    On Ray they are trained one after the other, in this process; each is attacked in another
    process while the next is trained. Else `jobs` cells are trained at once.
    """
    is_overlapping = jobs == 1 and any(choose_engine(cell.settings).name == "ray" for cell in cells)
    trained = train_cells(cells, folder) if is_overlapping else map(CellOutcome, cells)
    processes = ATTACK_PROCESSES if is_overlapping else jobs
    finish = partial(finish_cell, folder=folder)
    with closing(run_items(finish, trained, processes, replace_lost)) as outcomes:
        yield from outcomes


def finish_cell(trained: CellOutcome, folder: Path) -> CellOutcome:
    """Train and attack a cell, as far as it is not, unless its training failed."""
    return trained if trained.error else _attempt(run_cell, trained.cell, folder)


def replace_lost(trained: CellOutcome) -> CellOutcome:
    """Make the outcome of a cell whose process was killed."""
    return trained._replace(error=FailedError(f"{KILLED}; {FEWER}"))


def train_cells(cells: Sequence[Cell], folder: Path) -> Iterator[CellOutcome]:
    """Train each cell when it is asked for; those on Ray share one."""
    with ExitStack() as stack:
        if any(
            choose_engine(cell.settings).name == "ray"
            for cell in cells
            if not (folder / "runs" / cell.name / RESULT_FILE).exists()
        ):
            from sims.engines.ray import keep_ray  # needs Flower, which other engines do not

            stack.enter_context(keep_ray())
        for cell in cells:
            yield _attempt(train_cell, cell, folder)


def _attempt(work: Callable[[Cell, Path], None], cell: Cell, folder: Path) -> CellOutcome:
    """Do one cell's work; an error becomes one of fedcel's own kinds.

    A user's exception may not come through a pipe between processes.
    """
    try:
        work(cell, folder)
    except FedcelError as error:
        kinds = (k for k in type(error).__mro__ if k.__module__ == FedcelError.__module__)
        return CellOutcome(cell, next(kinds)(str(error)))
    except Exception as error:  # a user's part may raise anything, and the others go on
        reason = f"{describe_unforeseen(error)} ({describe_origin(error)})"
        return CellOutcome(cell, FailedError(reason))
    return CellOutcome(cell)
