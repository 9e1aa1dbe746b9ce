"""A bounded queue before one thread: items that wait at the same time are worked on together."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

LINGER_SECONDS = 0.001
"""How long a batch waits for the next item, twice; uvloop counts in milliseconds."""
MAX_LINGER_SECONDS = 0.01
"""How long its first item waits for others, at most."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class FullError(Exception):
    """The queue is full, or closed for the end."""


class Batcher(Generic[Item, Result]):
    """Hands items to `work` in batches, one batch at a time; `start` it before anything else.

    `work` runs in the thread and returns one result for each item. At most `max_waiting` items
    wait, at most `max_batch` are a batch. Made, started and closed within one event loop.

    A batch begins as soon as all that were under way at the end of the last one are waiting again,
    or no more come. Half of them at a time would let event loop and thread work at once, but Python
    lets one of them at a time, and each change of turns costs more than the wait.
    """

    _loop: asyncio.AbstractEventLoop

    def __init__(
        self,
        work: Callable[[Sequence[Item]], Sequence[Result]],
        thread: ThreadPoolExecutor,
        *,
        max_batch: int,
        max_waiting: int,
    ) -> None:
        self.work = work
        self.thread = thread
        self.max_batch = max_batch
        self.max_waiting = max_waiting
        self._waiting: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        self._enough = 1
        """With so many waiting a batch begins at once."""
        self._lingering = 0
        """How many waited when the timer was set."""
        self._deadline = 0.0
        self._is_working = False
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()

    async def start(self) -> None:
        """Begin to work on what is submitted."""
        self._loop = asyncio.get_running_loop()
        self._idle.set()

    def count_waiting(self) -> int:
        """Return how many items wait."""
        return len(self._waiting)

    async def submit(self, item: Item) -> Result:
        """Return the item's result; FullError at once where there is no room."""
        if self._is_closed or len(self._waiting) >= self.max_waiting:
            raise FullError
        future: asyncio.Future[Result] = self._loop.create_future()
        self._waiting.append((item, future))
        self._idle.clear()
        self._begin_if_due()
        return await future

    async def close(self) -> None:
        """Take no more, answer all that waits, end."""
        self._is_closed = True
        self._begin_if_due()
        await self._idle.wait()

    def _begin_if_due(self) -> None:
        """Begin a batch where enough wait for it, else soon."""
        if self._is_working or not self._waiting:
            return
        if len(self._waiting) >= self._enough or self._is_closed:
            self._begin()
        elif self._timer is None:
            self._deadline = self._loop.time() + MAX_LINGER_SECONDS
            self._linger()

    def _linger(self) -> None:
        """Wait as long as more come."""
        self._lingering = len(self._waiting)
        self._timer = self._loop.call_later(LINGER_SECONDS, self._linger_again)

    def _linger_again(self) -> None:
        """Wait once more: a busy loop may not have looked for what came since."""
        self._timer = self._loop.call_later(LINGER_SECONDS, self._begin_if_alone)

    def _begin_if_alone(self) -> None:
        """Begin a batch where no more came."""
        if len(self._waiting) > self._lingering and self._loop.time() < self._deadline:
            self._linger()
        else:
            self._begin()

    def _begin(self) -> None:
        """Hand a batch to the thread."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        size = min(len(self._waiting), self.max_batch)
        batch = [self._waiting.popleft() for _ in range(size)]
        self._is_working = True
        self.thread.submit(self._work_on, batch)

    def _work_on(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        """Work in the thread, and wake the event loop once for the whole batch."""
        items = [item for item, _ in batch]
        results: Sequence[Result] | Exception
        try:
            results = self.work(items)
            if len(results) != len(items):
                raise ValueError(f"{len(results)} results for {len(items)} items; must be as many")
        except Exception as error:  # each submitter is told, the next batch is worked on
            results = error
        except BaseException as error:  # such as SystemExit, which would end the event loop
            results = RuntimeError(f"a batch ended with {type(error).__name__}")
        self._loop.call_soon_threadsafe(self._finish, batch, results)

    def _finish(
        self,
        batch: list[tuple[Item, asyncio.Future[Result]]],
        results: Sequence[Result] | Exception,
    ) -> None:
        """Tell the submitters, and begin the next batch."""
        self._is_working = False
        for place, (_, future) in enumerate(batch):
            if future.done():  # the submitter has gone
                continue
            if isinstance(results, Exception):
                future.set_exception(results)
            else:
                future.set_result(results[place])
        under_way = len(batch) + len(self._waiting)
        self._enough = min(under_way, self.max_batch)
        self._begin_if_due()
        if not self._waiting and not self._is_working:
            self._idle.set()
