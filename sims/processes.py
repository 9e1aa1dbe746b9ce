"""Independent work in several processes; whatever interrupts ends them all at once."""

import os
import signal
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import active_children, get_context, util
from types import FrameType
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def work(
    function: Callable[[Item], Result], items: Iterable[Item], jobs: int
) -> Generator[Result, None, None]:
    """Yield function(item) of each item as it ends, in this process where `jobs` is 1.

    An error of one item, Ctrl-C, or a consumer that goes away ends the other processes in the
    middle of theirs. `function` and the items are pickled where there are several processes.
    """
    if jobs == 1:
        yield from map(function, items)
        return
    others = set(active_children())
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), _listen)
    try:
        futures = [pool.submit(function, item) for item in items]
        yield from (future.result() for future in as_completed(futures))
    except BaseException:  # Ctrl-C and a consumer that went away, too
        for process in set(active_children()) - others:
            process.terminate()  # the pool itself would let each end its item, and one more
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _listen() -> None:
    """Leave Ctrl-C to the first process, which then terminates this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)


def _end(number: int, frame: FrameType | None) -> None:
    """End now, semaphores returned: those that libraries made are else reported as leaked.

    An exception would not do: the pool takes it for the item's result and begins the next.
    """
    util._exit_function()  # type: ignore[attr-defined]  # what multiprocessing does at an end
    os._exit(128 + number)
