"""Progress for people: a bar on a terminal, plain lines elsewhere and from several processes."""

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import parent_process
from threading import Timer

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from fedcel.attacks import AttackListener
from fedcel.errors import escape_controls
from fedcel.runs import Event, EventCallback

LINE_SECONDS = 10.0  # between two lines where there is no terminal
WAIT_SECONDS = 2.0  # of silence, until a line says what is waited for

ShowStep = Callable[[float, float, str], None]
"""A callback: how many steps are done, of how many (0: unknown), and what is going on."""


@contextmanager
def show_steps(activity: str, *, has_start_up: bool = False) -> Iterator[ShowStep]:
    """Show a bar, or lines where there is no terminal; yields the callback that moves it.

    A process that another began prints lines, too: bars of several would erase each other.

    Args:
        activity: Stands before each line.
        has_start_up: The first steps that are done took longer than others will, or were done
            before: the time that is left is estimated from later ones.
    """
    if not is_on_terminal():
        begin, steps_before = time.monotonic(), 0.0
        print_now_and_then = throttle_lines(activity)
        steps_done = 0.0
        seconds = list[float]()

        def print_step(finished: float, total: float, state: str) -> None:
            nonlocal begin, steps_before, steps_done, seconds
            if finished > steps_done:
                now = time.monotonic()
                if has_start_up and not steps_done:
                    begin, steps_before = now, finished
                else:
                    seconds = [(now - begin) / (finished - steps_before)]
                steps_done = finished
            print_now_and_then(f"{state}{estimate_left(seconds, total - finished)}")

        yield print_step
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        TextColumn("{task.fields[unit]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[state]}", table_column=Column(ratio=1, no_wrap=True)),
    )  # the state has what width is left: the others stay whole
    with Progress(*columns, console=Console(file=sys.stderr), expand=True) as bar:
        task = bar.add_task(escape(escape_controls(activity)), total=None, unit="", state="")

        def move_bar(finished: float, total: float, state: str) -> None:
            unit = "left" if total else ""
            shown = escape(escape_controls(state))  # brackets would be a markup
            bar.update(task, completed=finished, total=total or None, unit=unit, state=shown)

        yield move_bar


@contextmanager
def show_rounds(title: str, total: int) -> Iterator[EventCallback]:
    """Show training progress: yields a callback that takes each round's event.

    After the last round it shows that the leak is measured.
    """
    activity = name_activity("training", title)
    with ExitStack() as bars:
        # Until the first round ends, engines start processes.
        show_step = bars.enter_context(show_steps(activity, has_start_up=True))
        show_step(0, total, f"round 0 of {total}")

        def show_round(event: Event) -> None:
            finished = int(str(event["round"]))
            spread = f"{event['within-class-spread']:.3f}"
            scores = f"accuracy {event['accuracy']:.3f}, spread within classes {spread}"
            show_step(finished, total, f"round {finished} of {total}, {scores}")
            if finished == total:
                if not is_on_terminal():
                    print_line(f"{activity}: all {total} rounds done, {scores}")
                bars.close()
                bars.enter_context(show_steps("measuring the leak"))

        yield show_round


@contextmanager
def show_attacks(title: str) -> Iterator[AttackListener]:
    """Show attack progress: yields a listener that prints lines and moves the bar.

    Of the attack under way, the seeds that are done count as a part of it.
    """
    with show_steps(name_activity("attacking", title)) as show_step:
        finished, total = 0.0, 0
        show_step(finished, total, "reading the run")

        def show_line(line: str) -> None:
            show_step(finished, total, f"{int(finished)} of {total} attacks done, {line}")

        def show_attack(attacks_done: float, attacks: int, name: str) -> None:
            nonlocal finished, total
            finished, total = attacks_done, attacks
            show_line(name)

        yield AttackListener(show_line, show_attack)


@contextmanager
def show_waiting(activity: str) -> Iterator[None]:
    """Say what is going on, once, should it take longer than `WAIT_SECONDS`."""
    timer = Timer(WAIT_SECONDS, print_line, [f"{activity} ..."])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def name_activity(activity: str, title: str) -> str:
    """Return "training none-0" of a cell's name; a title that names the activity stays as it is."""
    return title if title.startswith(activity) else f"{activity} {title}"


def is_on_terminal() -> bool:
    """Say whether this is the command's first process, and somebody looks at its terminal.

    Colours that an environment forces, as notebooks do, make no terminal of a file.
    """
    return parent_process() is None and sys.stderr.isatty()


def throttle_lines(activity: str) -> Callable[[str], None]:
    """Return a function that prints a line at most every few seconds."""
    last = time.monotonic()

    def print_now_and_then(line: str) -> None:
        nonlocal last
        if time.monotonic() - last > LINE_SECONDS:
            last = time.monotonic()
            print_line(f"{activity}: {line}")

    return print_now_and_then


def estimate_left(seconds: Sequence[float], remaining: float, jobs: int = 1) -> str:
    """Return how long `remaining` items take, `jobs` at a time, each as long as the finished ones.

    Items at work count as if just begun. Empty before the first is finished.
    """
    if not seconds:
        return ""
    waves = math.ceil(remaining / jobs) if jobs > 1 else remaining
    return f", about {statistics.fmean(seconds) * waves:.0f} s left"


def print_line(line: str) -> None:
    """Write one line to stderr; names and errors in it may be anybody's."""
    print(escape_controls(line), file=sys.stderr, flush=True)
