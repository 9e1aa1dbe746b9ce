"""Progress for people: a bar on a terminal, plain lines elsewhere and from several processes."""

import math
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import parent_process
from threading import Event as Signal
from threading import Thread

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column
from rich.text import Text

from fedcel.attacks import ESTIMATE, AttackListener
from fedcel.errors import escape_controls
from fedcel.progress import listen_to_progress
from fedcel.runs import Event, EventCallback

LINE_SECONDS = 10.0  # between two lines where there is no terminal
STEP_COUNT = re.compile(r"\b(\d+)/(\d+)\b")
"""Count of steps in the lines of attacks."""
WAIT_SECONDS = 2.0  # of silence, until a line says what is waited for

ShowStep = Callable[[float, float, str], None]
"""A callback: how many steps are done, of how many (0: unknown), and what is going on."""


class Pace:
    """Speed of steps: estimates what is left, and moves while a step takes its time.

    Args:
        has_start_up: As of `show_steps`.
    """

    def __init__(self, *, has_start_up: bool = False) -> None:
        self._has_start_up = has_start_up
        self.begin = self._first_time = self._last_time = time.monotonic()
        self._first = self._finished = 0.0
        self._advances = 0

    def note(self, finished: float) -> None:
        """Note how many steps are done."""
        if finished <= self._finished:
            return
        self._last_time = time.monotonic()
        if self._has_start_up and not self._finished:
            self._first, self._first_time = finished, self._last_time
        else:
            self._advances += 1
        self._finished = finished

    def estimate_left(self, total: float) -> float | None:
        """Estimate the seconds left of `total` steps; None where that is 0 or nothing is done yet.

        A step that takes longer than those before it is expected to need as long again as it has
        exceeded them.
        """
        if not self._advances or not total:
            return None
        seconds = self._last_time - self._first_time
        remaining = seconds / (self._finished - self._first) * (total - self._finished)
        usual = seconds / self._advances
        waited = time.monotonic() - self._last_time
        return max(0.0, remaining - usual) + abs(min(remaining, usual) - waited)


class TimeLeftColumn(ProgressColumn):
    """The time left on a bar, as `Pace` estimates it."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        super().__init__()

    def render(self, task: Task) -> Text:
        """Return minutes and seconds."""
        seconds = self._pace.estimate_left(task.total or 0)
        if seconds is None:
            return Text("")
        minutes, seconds = divmod(round(seconds), 60)
        return Text(f"{minutes}:{seconds:02d} left")


@contextmanager
def show_steps(activity: str, *, has_start_up: bool = False) -> Iterator[ShowStep]:
    """Show a bar, or lines where there is no terminal; yields the callback that moves it.

    A process that another began prints lines, too: bars of several would erase each other. Where
    nothing new comes, a line is repeated with the time that has passed. With a start-up the first
    steps are slow, or were done before: the time that is left is estimated from later ones.
    """
    pace = Pace(has_start_up=has_start_up)
    if not is_on_terminal():
        with repeat_lines(activity, pace) as print_step:
            yield print_step
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        TimeLeftColumn(pace),
        TextColumn("{task.fields[state]}", table_column=Column(ratio=1, no_wrap=True)),
    )  # the state has what width is left: the others stay whole
    with Progress(*columns, console=Console(file=sys.stderr), expand=True) as bar:
        task = bar.add_task(escape(escape_controls(activity)), total=None, state="")

        def move_bar(finished: float, total: float, state: str) -> None:
            pace.note(finished)
            shown = escape(escape_controls(state))  # brackets would be a markup
            bar.update(task, completed=finished, total=total or None, state=shown)

        yield move_bar


@contextmanager
def show_parts(activity: str, parts: str) -> Iterator[None]:
    """Show how much of the work inside is done, counted in `parts`, as the library tells."""
    with show_steps(activity) as show_step:

        def show_part(finished: int, total: int) -> None:
            counted = total if finished < total else 0  # nobody counts what follows the last one
            show_step(finished, counted, f"{finished} of {total} {parts}")

        with listen_to_progress(show_part):
            yield


@contextmanager
def repeat_lines(activity: str, pace: Pace) -> Iterator[ShowStep]:
    """Print what goes on: after `WAIT_SECONDS`, then every `LINE_SECONDS`, whatever is new."""
    latest = (0.0, 0.0, "")
    last = pace.begin
    over = Signal()

    def print_latest() -> None:
        nonlocal last
        _, total, state = latest
        last = time.monotonic()
        seconds_left = pace.estimate_left(total)
        passed = (
            f"{last - pace.begin:.0f} s so far"
            if seconds_left is None
            else f"about {seconds_left:.0f} s left"
        )
        print_line(f"{activity}: {state}, {passed}" if state else f"{activity}, {passed}")

    def print_step(finished: float, total: float, state: str) -> None:
        nonlocal latest
        pace.note(finished)
        latest = (finished, total, state)
        if time.monotonic() - last > LINE_SECONDS:
            print_latest()

    def print_now_and_then() -> None:
        wait = WAIT_SECONDS
        while not over.wait(max(wait, 0.1)):
            if time.monotonic() - last >= wait:
                print_latest()
            wait = LINE_SECONDS

    repeater = Thread(target=print_now_and_then, daemon=True)
    repeater.start()
    try:
        yield print_step
    finally:
        over.set()
        repeater.join()


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
def show_attacks(title: str, seeds: int = 1) -> Iterator[AttackListener]:
    """Show attack progress: yields a listener that prints lines and moves the bar.

    Of the attack under way, the seeds that are done count as a part of it, and so do its steps
    where it counts them, as "epoch 3/40".
    """
    activity = name_activity("attacking", title)
    with show_steps(activity) as show_step:
        finished, total = 0.0, 0
        show_step(finished, total, "preparing")

        def show_line(line: str) -> None:
            counted = STEP_COUNT.search(line)
            part = int(counted[1]) / int(counted[2]) if counted and int(counted[2]) else 0.0
            if ESTIMATE in line:
                print_line(f"{activity}: {line}")
            state = f"{int(finished)} of {total} attacks done, {line}"
            show_step(finished + min(part, 0.99) / seeds, total, state)

        def show_attack(attacks_done: float, attacks: int, name: str) -> None:
            nonlocal finished, total
            finished, total = attacks_done, attacks
            show_line(name)

        yield AttackListener(show_line, show_attack)


@contextmanager
def show_waiting(activity: str) -> Iterator[None]:
    """Show what is going on, and for how long, should it take longer than `WAIT_SECONDS`."""
    with repeat_lines(activity, Pace()):
        yield


def name_activity(activity: str, title: str) -> str:
    """Return "training none-0" of a cell's name; a title that names the activity stays as it is."""
    return title if title.startswith(activity) else f"{activity} {title}"


def is_on_terminal() -> bool:
    """Whether this is the command's first process, and somebody looks at its terminal.

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
