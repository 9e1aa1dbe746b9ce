"""Clock of an attack: estimates how long it takes, and ends its loops when its time is up."""

import time
from collections.abc import Callable, Iterator, Sequence
from math import inf
from pathlib import Path
from typing import TypeVar

from fedcel.errors import SizeError

ESTIMATE = "takes about"
"""In the line of progress that tells how long an attack takes."""
MOST_SECONDS = 4 * 3600.0  # of an attack without a limit
LEAST_TIMED = 1.0  # seconds of steps that an estimate is based on
LEAST_TOLD = 5.0  # seconds of an attack whose time is told
MEMORY_SHARE = 0.8  # of the free memory that an attack may take
MEMORY_FILE = Path("/proc/meminfo")  # of Linux

Item = TypeVar("Item")


class AttackClock:
    """Time of one attack.

    The attack takes its steps from `steps` and `parts`, which end early where time is up. Once a
    second of steps has been timed, the time of the whole attack is told.

    Args:
        seconds: The most seconds from now on; 0: no limit.
        tell: Takes the line of the estimate.
    """

    def __init__(self, seconds: float = 0.0, tell: Callable[[str], object] | None = None) -> None:
        self._begin = time.monotonic()
        self._seconds, self._tell = seconds, tell
        self._end = self._deadline = self._begin + (seconds or inf)
        self._left, self._missed = 1.0, 0.0  # shares of the attack
        self._first: tuple[float, float] | None = None  # time and work after the first part
        self._done = self._total = 0.0  # work of the current loop
        self._share = 1.0
        self._later: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether the time of the current loop is up."""
        return time.monotonic() >= self._deadline

    @property
    def share_of_steps(self) -> float | None:
        """Share of the attack's steps that were taken; None where time ended none of its loops."""
        return 1 - self._missed if self._missed else None

    def steps(
        self, number: int, work: float = 1.0, share: float = 1.0, least: int = 0
    ) -> Iterator[int]:
        """Yield 1 to `number`, while there is time.

        Args:
            number: Steps of this loop.
            work: Work of one step, in a unit of the attack's own.
            share: Work of this loop as a share of all that the attack still has to do.
            least: Steps that are taken in any case.
        """
        now = time.monotonic()
        self._deadline = now + share * max(0.0, self._end - now)
        self._first, self._done, self._total, self._share = None, 0.0, number * work, share
        covered = self._left * share
        self._left -= covered
        for step in range(1, number + 1):
            if step > least and self.is_over:
                self._missed += covered * (number - step + 1) / number
                break
            yield step
            self._note(step * work)

    def parts(self, items: Sequence[Item], work: float = 1.0) -> Iterator[Item]:
        """Yield the items of one step, such as batches, while there is time, the first in any case.

        `work` is that of all of them, as `steps` counts it.
        """
        before = self._done
        for count, item in enumerate(items, 1):
            yield item
            self._note(before + work * count / len(items))
            if self.is_over:
                break

    def expect(self, seconds: float | None) -> None:
        """Expect loops to come to take so many seconds; None: as their shares of the work say."""
        self._later = seconds

    def tell_estimate(self, seconds: float) -> None:
        """Tell once how long the attack takes.

        Raises:
            SizeError: It takes hours, and has no limit.
        """
        if self._tell is None or seconds < LEAST_TOLD:
            return
        line, tell, self._tell = f"{ESTIMATE} {describe_time(seconds)}", self._tell, None
        if not self._seconds and seconds > MOST_SECONDS:
            raise SizeError(
                f"it would take about {describe_time(seconds)} at this size; limit it to some "
                "seconds (attack.seconds, --seconds), lower the budget, or take another attack"
            )
        if 0 < self._seconds < seconds:
            line += f", and is stopped after {self._seconds:g} s"
        tell(line)

    def _note(self, done: float) -> None:
        """Note the work done of the current loop; tell the estimate when there are enough."""
        self._done = done
        if self._tell is None:
            return
        now = time.monotonic()
        if self._first is None:  # the first part is slower than others
            self._first = now, done
        elif now - self._first[0] >= LEAST_TIMED:
            pace = (now - self._first[0]) / (done - self._first[1])
            later = (
                pace * self._total * (1 / self._share - 1) if self._later is None else self._later
            )
            self.tell_estimate(now - self._begin + pace * (self._total - done) + later)


def describe_time(seconds: float) -> str:
    """Describe a time in seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def check_memory(size: float) -> None:
    """Refuse an attack that needs more bytes at once than are free; SizeError."""
    free = find_free_memory()
    if size > MEMORY_SHARE * free:
        raise SizeError(
            f"it would take about {size / 1e9:.1f} GB of memory at this size, and {free / 1e9:.1f} "
            "are free; take smaller images, fewer of them, or another attack"
        )


def find_free_memory() -> float:
    """Return the bytes that a new program may take; infinity where the system does not tell."""
    if MEMORY_FILE.exists():
        for line in MEMORY_FILE.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024.0 * int(line.split()[1])
    return inf
