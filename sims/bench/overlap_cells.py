"""Train one cell after the other, and attack those that are trained meanwhile.

An engine that trains in processes of its own leaves gaps on the cores, and an attack has one
thread: overlapped, both take less time than one after the other.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread
from time import monotonic
from typing import NamedTuple

import torch

from fedcel.errors import FailedError, FedcelError
from sims.attacking import attack_run, print_contradictions
from sims.bench.run_cell import CellOutcome, measure_cost, train_cell, wrap_error
from sims.bench.scenario import Cell
from sims.engines.choose_engine import choose_engine
from sims.engines.process_pool import KILLED, open_pool
from sims.progress import show_steps
from sims.results import RESULT_FILE, lacking_settings


class Part(NamedTuple):
    """Work on a trained cell: one attack, or without a name the measurement of its cost."""

    cell: Cell
    attack: str | None


class PartOutcome(NamedTuple):
    """How a part ended: why it failed, if it did."""

    part: Part
    error: FedcelError | None


class TrainedCells:
    """What is to be done on trained cells, and how those ended of which all is done.

    Args:
        folder: The bench's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.waiting = SimpleQueue[Part | None]()
        self.ended = SimpleQueue[PartOutcome]()
        self.part_count = 0
        self.ended_count = 0
        self._open = Counter[str]()
        self._errors: dict[str, FedcelError] = {}

    @property
    def is_done(self) -> bool:
        """Say whether every part ended."""
        return self.ended_count == self.part_count

    def add_cell(self, cell: Cell) -> None:
        """Let a cell that was trained wait for its attacks and the measurement of its cost."""
        lacking = lacking_settings(self.folder / "runs" / cell.name, cell.settings.attack)
        names: list[str | None] = [None, *(lacking.names.split(",") if lacking else ())]
        self._open[cell.name] = len(names)
        self.part_count += len(names)
        for name in names:
            self.waiting.put(Part(cell, name))

    def conclude_cells(self, *, waits: bool = False) -> Iterator[CellOutcome]:
        """Yield the outcomes of cells whose last part ended; with `waits` after one more did."""
        while True:
            try:
                part, error = self.ended.get(block=waits)
            except Empty:
                return
            waits = False
            name = part.cell.name
            self.ended_count += 1
            self._open[name] -= 1
            if error:
                self._errors.setdefault(name, error)
            if not self._open[name]:
                if name not in self._errors:
                    print_contradictions(self.folder / "runs" / name)
                yield CellOutcome(name, self._errors.get(name))


def overlap_cells(
    cells: Sequence[Cell], folder: Path
) -> Generator[tuple[CellOutcome, float], None, None]:
    """Train cells in this process; attack them in another one, and here when all are trained.

    Trainings on Ray share one Ray.

    Args:
        cells: That are not finished.
        folder: The bench's folder.

    Yields:
        How each cell ended, and the seconds since the one before.
    """
    last = monotonic()
    for outcome in _overlap(cells, folder):
        before, last = last, monotonic()
        yield outcome, last - before


def _overlap(cells: Sequence[Cell], folder: Path) -> Generator[CellOutcome, None, None]:
    """Yield how each cell ended."""
    trained = TrainedCells(folder)
    with help_in_process(trained):
        with share_ray(cells, folder):
            for cell in cells:
                if error := attempt(train_cell, cell, folder):
                    yield CellOutcome(cell.name, error)
                else:
                    trained.add_cell(cell)
                yield from trained.conclude_cells()
        with show_steps("attacking", has_start_up=True) as show_step:
            while not trained.is_done:
                done, count = trained.ended_count, trained.part_count
                show_step(done, count, f"{done} of {count} attacks and measurements done")
                try:
                    part = trained.waiting.get(block=False)
                except Empty:
                    yield from trained.conclude_cells(waits=True)
                    continue
                if part is not None:
                    trained.ended.put(PartOutcome(part, work_on(part, folder)))
                yield from trained.conclude_cells()


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


@contextmanager
def help_in_process(trained: TrainedCells) -> Iterator[None]:
    """Let another process carry out parts within the block, and a new one where it is killed."""
    stop = Event()
    with ExitStack() as ends, ExitStack() as pools:

        def start_process() -> ProcessPoolExecutor:
            return pools.enter_context(open_pool(1))

        helper = Thread(target=carry_out_parts, args=(trained, start_process, stop))
        helper.start()
        ends.callback(helper.join)  # after its pools have ended
        try:
            yield
        finally:
            stop.set()
            trained.waiting.put(None)


def carry_out_parts(
    trained: TrainedCells, start_process: Callable[[], ProcessPoolExecutor], stop: Event
) -> None:
    """Carry out parts in another process until there are no more.

    Args:
        trained: Has the parts.
        start_process: Makes a pool of one process.
        stop: Set when the process is no longer needed: that it is gone is no failure then.
    """
    process = start_process()
    process.submit(load_modules)
    for part in iter(trained.waiting.get, None):
        error: FedcelError | None
        try:
            error = process.submit(work_on, part, trained.folder).result()
        except (RuntimeError, CancelledError) as lost:
            if stop.is_set():
                return
            if not isinstance(lost, BrokenProcessPool):
                raise
            error = FailedError(KILLED)
            process = start_process()
        trained.ended.put(PartOutcome(part, error))


def load_modules() -> None:
    """Import what parts need, while the first cell is trained."""
    torch.set_num_threads(1)


def work_on(part: Part, folder: Path) -> FedcelError | None:
    """Carry out a part; return why it failed, if it did."""
    torch.set_num_threads(1)
    place = folder / "runs" / part.cell.name
    if part.attack is None:
        return attempt(measure_cost, part.cell, place)
    attack_settings = part.cell.settings.attack.model_copy(update={"names": part.attack})

    def attack(cell: Cell, place: Path) -> None:
        attack_run(place, attack_settings, is_alone=False)

    return attempt(attack, part.cell, place)


def attempt(function: Callable[[Cell, Path], None], cell: Cell, folder: Path) -> FedcelError | None:
    """Call a function; return why it failed, if it did."""
    try:
        function(cell, folder)
    except Exception as error:  # a user's part may raise anything, and the others go on
        return wrap_error(error)
    return None
