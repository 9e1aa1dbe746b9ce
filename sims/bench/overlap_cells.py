"""Cells on Ray: trained one after the other, each attacked while the next is trained."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from fedcel.errors import FailedError, FedcelError
from sims.bench.run_cell import CellOutcome, attempt_cell, train_cell, wrap_error
from sims.bench.scenario import Cell
from sims.engines.choose_engine import choose_engine
from sims.engines.process_pool import KILLED, run_items
from sims.results.file_names import RESULT_FILE

PROCESSES = 2
"""Of attacks: one is at work while the other is given the next trained cell."""


class TrainedCell(NamedTuple):
    """A cell that was trained, or the reason for which it was not."""

    cell: Cell
    error: FedcelError | None


def overlap_cells(
    cells: Sequence[Cell], folder: Path
) -> Generator[tuple[CellOutcome, float], None, None]:
    """Train cells in this process on one Ray; attack them in others.

    Args:
        cells: Unfinished cells.
        folder: The bench's folder.

    Yields:
        The outcome of each cell, and the seconds since the one before.
    """
    last = monotonic()
    attack = partial(attack_cell, folder=folder)
    with (
        closing(train_cells(cells, folder)) as trained,
        closing(run_items(attack, trained, PROCESSES, replace_lost)) as outcomes,
    ):
        for outcome in outcomes:
            before, last = last, monotonic()
            yield outcome, last - before


def train_cells(cells: Sequence[Cell], folder: Path) -> Generator[TrainedCell, None, None]:
    """Train each cell when it is asked for."""
    with share_ray(cells, folder):
        for cell in cells:
            error = None
            try:
                train_cell(cell, folder)
            except Exception as reason:  # a user's part may raise anything, and the others go on
                error = wrap_error(reason)
            yield TrainedCell(cell, error)


def attack_cell(trained: TrainedCell, folder: Path) -> CellOutcome:
    """Attack a trained cell, and measure its cost."""
    cell, error = trained
    return CellOutcome(cell.name, error) if error else attempt_cell(cell, folder)


def replace_lost(trained: TrainedCell) -> CellOutcome:
    """Return the outcome of a cell whose attacker was killed."""
    return CellOutcome(trained.cell.name, FailedError(KILLED))


@contextmanager
def share_ray(cells: Sequence[Cell], folder: Path) -> Iterator[None]:
    """Keep one Ray for the trainings on it within the block, if there are any."""
    needs_ray = any(
        choose_engine(cell.settings) == "ray"
        and not (folder / "runs" / cell.name / RESULT_FILE).exists()
        for cell in cells
    )
    if not needs_ray:
        yield
        return
    from sims.engines.ray import keep_ray  # needs Flower, which other engines do not

    with keep_ray():
        yield
