"""Work in one process; in several it is tested where it is used, each costs an import of torch."""

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from multiprocessing import active_children
from pathlib import Path

import pytest

from fedcel.errors import FailedError
from sims.parallel_jobs import run_items


def test_every_item_once() -> None:
    """In the order given."""
    assert list(run_items(math.sqrt, [4.0, 9.0, 16.0], 1)) == [2.0, 3.0, 4.0]


def test_one_process_begins_an_item_when_it_is_asked_for() -> None:
    """So that what is done by then has been told."""
    begun: list[int] = []
    running: Generator[None, None, None] = run_items(begun.append, [1, 2], 1)
    next(running)
    assert begun == [1]


def root(number: float) -> float:
    """Return a square root; a process asked for that of 0 is killed."""
    if number == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.2)
    return math.sqrt(number)


def test_a_killed_process_takes_no_other_item_along() -> None:
    """Neither one that is at work beside it nor one that waits; no process is left over."""
    before = set(active_children())
    numbers = [0.0, 1.0, 0.0, 4.0, 9.0, 16.0]
    assert sorted(run_items(root, numbers, 2, lambda number: number - 1)) == [-1, -1, 1, 2, 3, 4]
    assert set(active_children()) == before
    with pytest.raises(FailedError, match="was killed, perhaps for want of memory; fewer --jobs"):
        list(run_items(root, numbers, 2))
    assert set(active_children()) == before


def test_other_processes_end_with_the_first() -> None:
    """Killed outright, it can end nobody; its two sleepers do it themselves."""
    imports = "import time; from sims.parallel_jobs import run_items"
    code = f"{imports}; list(run_items(time.sleep, [600, 600], 2))"
    first = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    children = Path(f"/proc/{first.pid}/task/{first.pid}/children")
    started = waited(lambda: sleepers(children), lambda processes: len(processes) == 2)
    assert len(started) == 2
    first.kill()
    first.wait()
    assert waited(lambda: [p for p in started if alive(p)], lambda alive_ones: not alive_ones) == []


def sleepers(children: Path) -> list[int]:
    """Return the workers among a process's children; one more tracks its semaphores."""
    processes = [int(part) for part in children.read_text().split()]
    return [p for p in processes if b"spawn_main" in Path(f"/proc/{p}/cmdline").read_bytes()]


def alive(process: int) -> bool:
    """Say whether a process runs; one that nobody has waited for does not."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def waited(look: Callable[[], list[int]], enough: Callable[[list[int]], bool]) -> list[int]:
    """Return what is seen once it is enough, or after a minute."""
    end = time.monotonic() + 60
    while not enough(value := look()) and time.monotonic() < end:
        time.sleep(0.05)
    return value
