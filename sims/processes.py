"""Independent work in several processes; whatever interrupts ends them all at once."""

import os
import signal
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process, util
from threading import Thread
from types import FrameType
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def work(
    function: Callable[[Item], Result], items: Iterable[Item], jobs: int
) -> Generator[Result, None, None]:
    """Yield function(item) of each item as it ends, in this process where `jobs` is 1.

    `function` and the items are pickled where there are several processes, which `pool` ends.
    """
    if jobs == 1:
        yield from map(function, items)
        return
    with pool(jobs) as executor:
        futures = [executor.submit(function, item) for item in items]
        yield from (future.result() for future in as_completed(futures))


@contextmanager
def pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Hand out a pool of other processes.

    An error of one item, Ctrl-C, or a consumer that goes away ends them in the middle of theirs;
    so does the end of this process, whatever ended it.
    """
    others = set(active_children())
    found = ProcessPoolExecutor(jobs, get_context("spawn"), _listen)
    try:
        yield found
    except BaseException:  # Ctrl-C and a consumer that went away, too
        for process in set(active_children()) - others:
            process.terminate()  # the pool itself would let each end its item, and one more
        raise
    finally:
        found.shutdown(cancel_futures=True)


def _listen() -> None:
    """Leave Ctrl-C to the first process, which then terminates this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    """End when the first process has: killed, it can end nobody."""
    first = parent_process()
    if first is not None:
        first.join()
        os._exit(128 + signal.SIGKILL)


def _end(number: int, frame: FrameType | None) -> None:
    """End now, semaphores returned: those that libraries made are else reported as leaked.

    An exception would not do: the pool takes it for the item's result and begins the next.
    """
    util._exit_function()  # type: ignore[attr-defined]  # what multiprocessing does at an end
    os._exit(128 + number)
