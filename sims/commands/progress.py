"""Progress for people: a bar on a terminal, plain lines elsewhere and from several processes."""

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import parent_process

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedcel.attacks import TellAttack
from fedcel.runs import Event
from fedcel.runs import EventCallback as Tell

PLAIN_SECONDS = 10.0  # between two lines where there is no terminal
MEASURED = 0.1  # of the training's time, about, that the measurement after it takes


@contextmanager
def show_rounds(title: str, total: int) -> Iterator[Tell]:
    """Yield a function that is told each round's event; the bar ends with the block.

    Lines from a process that another began, too: bars of several would erase each other.
    """
    if not _has_own_terminal():
        yield _plain(title, total)
        return
    with _open_bar() as bar:
        whole = total * (1 + MEASURED)
        task = bar.add_task(title, total=whole, state=f"round 0 of {total}")

        def tell(event: Event) -> None:
            done = int(str(event["round"]))
            state = "measuring the leak" if done == total else f"round {done} of {total}"
            bar.update(task, completed=done, state=f"{state}, {_state(event)}")

        yield tell
        bar.update(task, completed=whole, state=f"{total} rounds, measured")


@contextmanager
def show_attacks(title: str) -> Iterator[tuple[Callable[[str], None], TellAttack]]:
    """Yield a function that says what an attack says of itself, and one that is told where we are.

    That takes how many attacks are done, with a part for the seeds of the one under way, of how
    many, and the name of what follows.
    """
    begin = time.monotonic()
    if not _has_own_terminal():
        say, place = throttle_lines(title), ""

        def tell(done: float, total: int, name: str) -> None:
            nonlocal place
            seconds = [(time.monotonic() - begin) / done] if done else []
            place = f", {done:.1f} of {total} attacks done{estimate_left(seconds, total - done)}"
            say(f"{name}{place}")

        yield lambda line: say(f"{line}{place}"), tell
        return
    with _open_bar() as bar:
        task = bar.add_task(title, total=None, state="reading the run")

        def advance(done: float, total: int, name: str) -> None:
            bar.update(task, total=total, completed=done, state=name)

        yield lambda line: bar.update(task, state=line), advance


@contextmanager
def show_work(title: str) -> Iterator[None]:
    """Show on a terminal that something is being done, and for how long."""
    if not _has_own_terminal():
        yield
        return
    with _open_bar() as bar:
        bar.add_task(title, total=None, state="")
        yield


def _has_own_terminal() -> bool:
    return parent_process() is None and Console(file=sys.stderr).is_terminal


def _open_bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[state]}"),
        console=Console(file=sys.stderr),
    )


def _state(event: Event) -> str:
    spread = f"{event['within-class-spread']:.3f}"
    return f"accuracy {event['accuracy']:.3f}, spread within classes {spread}"


def _plain(title: str, total: int) -> Tell:
    last = time.monotonic()

    def tell(event: Event) -> None:
        nonlocal last
        done = event["round"] == total
        if done or time.monotonic() - last > PLAIN_SECONDS:
            last = time.monotonic()
            print_line(f"{title}: round {event['round']}/{total}, {_state(event)}")

    return tell


def throttle_lines(title: str) -> Callable[[str], None]:
    """Return a function that says a line at most every few seconds."""
    last = time.monotonic()

    def tell(line: str) -> None:
        nonlocal last
        if time.monotonic() - last > PLAIN_SECONDS:
            last = time.monotonic()
            print_line(f"{title}: {line}")

    return tell


def estimate_left(seconds: Sequence[float], remaining: float, jobs: int = 1) -> str:
    """Return how long `remaining` items take, `jobs` at a time, each as long as the finished ones.

    Those at work count as if just begun. Nothing is said before the first is finished.
    """
    if not seconds:
        return ""
    waves = math.ceil(remaining / jobs) if jobs > 1 else remaining
    return f", about {statistics.fmean(seconds) * waves:.0f} s left"


def print_line(line: str) -> None:
    """Write one line to stderr."""
    print(line, file=sys.stderr, flush=True)
