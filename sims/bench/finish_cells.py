"""Cells of a bench that are trained and attacked: in this process, in several, or on Ray."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fedcel.errors import FailedError, FedcelError
from sims.bench.run_cell import run_cell, train_cell, wrap_error
from sims.bench.scenario import Cell
from sims.engines.choose_engine import choose_engine
from sims.parallel_jobs import FEWER, KILLED, run_items
from sims.results.file_names import RESULT_FILE

ATTACK_PROCESSES = 2
"""Of a bench on Ray: one is at work while the other is given the next trained cell."""


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
    """Do one cell's work."""
    try:
        work(cell, folder)
    except Exception as error:  # a user's part may raise anything, and the others go on
        return CellOutcome(cell, wrap_error(error))
    return CellOutcome(cell)
