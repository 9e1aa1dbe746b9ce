"""Independent work in several processes; whatever interrupts ends them all at once."""

import os
import signal
import time
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
from itertools import islice
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
    """Return function(item) and the seconds that it took; `run_items` takes a partial of this."""
    begin = time.monotonic()
    return function(item), time.monotonic() - begin


def run_items(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    jobs: int,
    replace_lost: Callable[[Item], Result] | None = None,
) -> Generator[Result, None, None]:
    """Yield function(item) of each item as it ends, in this process where `jobs` is 1.

    Args:
        function: Pickled, as the items are, where there are several processes.
        items: Independent of each other; each is asked for when a process is free.
        jobs: How many processes, which `open_pool` ends.
        replace_lost: Makes the result of an item whose process was killed; another process goes on
            with the other items.

    Raises:
        FailedError: A process was killed, and there is no `replace_lost`.
    """
    if jobs == 1:
        yield from map(function, items)
    else:
        yield from _run_in_processes(function, items, jobs, replace_lost)


def _run_in_processes(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    jobs: int,
    replace_lost: Callable[[Item], Result] | None,
) -> Generator[Result, None, None]:
    """Do the work in several processes, a pool each: who is killed takes nobody along."""
    waiting = iter(items)
    executors: list[ProcessPoolExecutor] = []
    running: dict[Future[Result], tuple[Item, ProcessPoolExecutor]] = {}
    with ExitStack() as pools:

        def start_process() -> ProcessPoolExecutor:
            executors.append(pools.enter_context(open_pool(1)))
            return executors[-1]

        def begin_next(executor: ProcessPoolExecutor) -> None:
            for item in islice(waiting, 1):
                try:
                    future = executor.submit(function, item)
                except BrokenProcessPool:  # killed at the item before, or after it
                    executor = start_process()
                    future = executor.submit(function, item)
                running[future] = item, executor

        processes = [start_process() for _ in range(jobs)]
        # Begun when all are there: the last to come then ends every process.
        for process in processes:
            begin_next(process)
        while running:
            future = next(iter(wait(running, return_when=FIRST_COMPLETED).done))
            item, executor = running.pop(future)
            result = _read_result(future, item, replace_lost)
            begin_next(executor)
            yield result
        _shut_down(executors)


def _read_result(
    future: Future[Result], item: Item, replace_lost: Callable[[Item], Result] | None
) -> Result:
    """Return an item's result, or what replaces it where its process was killed."""
    try:
        return future.result()
    except BrokenProcessPool:
        if replace_lost is None:
            raise FailedError(f"{KILLED}; {FEWER}") from None
        return replace_lost(item)


def _shut_down(executors: Sequence[ProcessPoolExecutor]) -> None:
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
    before = set(active_children())
    executor = ProcessPoolExecutor(jobs, get_context("spawn"), _init_process)
    try:
        yield executor
    except BaseException:  # Ctrl-C and a consumer that went away, too
        for process in set(active_children()) - before:
            process.terminate()  # the pool itself would let each end its item, and one more
        raise
    finally:
        executor.shutdown(cancel_futures=True)


def _init_process() -> None:
    """Leave Ctrl-C to the first process, which then terminates this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_now)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End when the first process has: killed, it can end nobody."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(128 + signal.SIGKILL)


def _end_now(number: int, frame: FrameType | None) -> None:
    """End now, semaphores returned: those that libraries made are else reported as leaked.

    An exception would not do: the pool takes it for the item's result and begins the next.
    """
    util._exit_function()  # type: ignore[attr-defined]  # what multiprocessing does at an end
    os._exit(128 + number)
