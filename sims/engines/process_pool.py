"""Independent work in several processes; whatever interrupts ends them all at once."""

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from multiprocessing import active_children, get_context, parent_process, util
from threading import Thread
from types import FrameType
from typing import TypeVar

from fedcel.errors import FailedError

KILLED = "its process was killed, perhaps for want of memory"
FEWER = "fewer --jobs need less"
Item = TypeVar("Item")
Result = TypeVar("Result")


def time_call(function: Callable[[Item], Result], item: Item) -> tuple[Result, float]:
    """Return function(item) and the seconds that it took: to `run_items`, a partial of its own."""
    begin = time.monotonic()
    return function(item), time.monotonic() - begin


def run_items(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    jobs: int,
    lost: Callable[[Item], Result] | None = None,
) -> Generator[Result, None, None]:
    """Yield function(item) of each item as it ends, in this process where `jobs` is 1.

    `function` and the items are pickled where there are several processes, which `open_pool` ends.
    An item whose process was killed has the result lost(item), and another process goes on with the
    rest; FailedError where there is no `lost`.
    """
    yield from map(function, items) if jobs == 1 else _several(function, items, jobs, lost)


def _several(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    jobs: int,
    lost: Callable[[Item], Result] | None,
) -> Generator[Result, None, None]:
    """Do the work in several processes, a pool each: who is killed takes nobody along."""
    left, executors = deque(items), list[ProcessPoolExecutor]()
    running: dict[Future[Result], tuple[Item, ProcessPoolExecutor]] = {}
    with ExitStack() as held:

        def fresh() -> ProcessPoolExecutor:
            executors.append(held.enter_context(open_pool(1)))
            return executors[-1]

        def begin(executor: ProcessPoolExecutor) -> None:
            if left:
                item = left.popleft()
                try:
                    future = executor.submit(function, item)
                except BrokenProcessPool:  # killed at the item before, or after it
                    executor = fresh()
                    future = executor.submit(function, item)
                running[future] = item, executor

        slots = [fresh() for _ in range(min(jobs, len(left)))]
        for slot in slots:  # begun when all are there: the last to come then ends every process
            begin(slot)
        while running:
            future = next(iter(wait(running, return_when=FIRST_COMPLETED).done))
            item, executor = running.pop(future)
            result = _result(future, item, lost)
            begin(executor)
            yield result
        _shut(executors)


def _result(future: Future[Result], item: Item, lost: Callable[[Item], Result] | None) -> Result:
    """Return what an item came to, `lost` having the word where its process was killed."""
    try:
        return future.result()
    except BrokenProcessPool:
        if lost is None:
            raise FailedError(f"{KILLED}; {FEWER}") from None
        return lost(item)


def _shut(executors: Sequence[ProcessPoolExecutor]) -> None:
    """End processes that have nothing left to do, all at once: each takes a second."""
    with ThreadPoolExecutor(len(executors) or 1) as threads:
        for executor in executors:
            threads.submit(executor.shutdown)


@contextmanager
def open_pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
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
