"""Progress for people: a bar on a terminal, plain lines elsewhere and from several processes."""

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import parent_process

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fedcel.federation.server_round import Event
from fedcel.runs.server_run import ShowRound as Tell

PLAIN_SECONDS = 10.0  # between two lines where there is no terminal


@contextmanager
def show_rounds(title: str, total: int) -> Iterator[Tell]:
    """Yield a function that is told each round's event.

    Lines from a process that another began, too: bars of several would erase each other.
    """
    console = Console(file=sys.stderr)
    if parent_process() is not None or not console.is_terminal:
        yield _plain(title, total)
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[state]}"),
        TimeRemainingColumn(),
        console=console,
    ) as bar:
        task = bar.add_task(title, total=total, state="starting")
        yield lambda event: bar.update(
            task, completed=float(str(event["round"])), state=_state(event)
        )


def _state(event: Event) -> str:
    return f"accuracy {event['accuracy']:.3f} spread {event['within-class-spread']:.3f}"


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


def estimate_left(seconds: Sequence[float], remaining: int, jobs: int) -> str:
    """Return how long `remaining` items take, `jobs` at a time, each as long as the finished ones.

    Those at work count as if just begun. Nothing is said before the first is finished.
    """
    if not seconds:
        return ""
    return f", about {statistics.fmean(seconds) * math.ceil(remaining / jobs):.0f} s left"


def print_line(line: str) -> None:
    """Write one line to stderr."""
    print(line, file=sys.stderr, flush=True)
