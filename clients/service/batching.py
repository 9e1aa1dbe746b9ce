"""A bounded queue: items that wait at the same time are worked on together."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, ParamSpec, TypeVar

LINGER_SECONDS = 0.001
"""How long a batch waits for the next item, twice; uvloop counts in milliseconds."""
MAX_LINGER_SECONDS = 0.01
"""How long its first item waits for others, at most."""

Item = TypeVar("Item")
Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")


class FullError(Exception):
    """The queue is full, or closed for the end."""


class Batcher(Generic[Item, Result]):
    """Hands items to `work` in batches; `start` it before anything else.

    `work` returns one result for each item. At most `max_waiting` items wait, at most `max_batch`
    are a batch, at most `at_once` batches are under way. Made, started and closed within one event
    loop.

    Work in a thread takes one batch at a time: Python lets one thread at a time, and each change of
    turns costs more than a wait. A batch then begins as soon as all that were under way at the end
    of the last one are waiting again, or no more come. Work in another process takes two batches of
    half of them, so that both processes are at work; where none is under way, one begins as soon as
    the event loop finds no more.
    """

    loop: asyncio.AbstractEventLoop
    """In which it was started, and all else happens."""

    def __init__(
        self,
        work: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        *,
        max_batch: int,
        max_waiting: int,
        at_once: int = 1,
    ) -> None:
        self.work = work
        self.at_once = at_once
        self.max_batch = max_batch
        self.max_waiting = max_waiting
        self._waiting: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        self._enough = 1
        """With so many waiting a batch begins at once."""
        self._lingering = 0
        """How many waited when the timer was set."""
        self._deadline = 0.0
        self._under_way: set[asyncio.Task[None]] = set()
        self._size_under_way = 0
        self._is_closed = False
        self._timer: asyncio.Handle | None = None
        self._idle = asyncio.Event()

    async def start(self) -> None:
        """Begin to work on what is submitted."""
        self.loop = asyncio.get_running_loop()
        self._idle.set()

    def count_waiting(self) -> int:
        """Return how many items wait."""
        return len(self._waiting)

    async def submit(self, item: Item) -> Result:
        """Return the item's result; FullError at once where there is no room."""
        if self._is_closed or len(self._waiting) >= self.max_waiting:
            raise FullError
        future: asyncio.Future[Result] = self.loop.create_future()
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
        if len(self._under_way) == self.at_once or not self._waiting:
            return
        if len(self._waiting) >= self._enough or self._is_closed:
            self._begin()
        elif self._timer is None and not self._under_way:
            self._deadline = self.loop.time() + MAX_LINGER_SECONDS
            self._linger()

    def _linger(self) -> None:
        """Wait as long as more come."""
        self._lingering = len(self._waiting)
        if self.at_once > 1:  # a process that has nothing to do waits for what is there already
            self._timer = self.loop.call_soon(self._begin_if_alone)
        else:
            self._timer = self.loop.call_later(LINGER_SECONDS, self._linger_again)

    def _linger_again(self) -> None:
        """Wait once more: a busy loop may not have looked for what came since."""
        self._timer = self.loop.call_later(LINGER_SECONDS, self._begin_if_alone)

    def _begin_if_alone(self) -> None:
        """Begin a batch where no more came."""
        if len(self._waiting) > self._lingering and self.loop.time() < self._deadline:
            self._linger()
        else:
            self._begin()

    def _begin(self) -> None:
        """Take a batch from the queue, and have it worked on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        size = min(len(self._waiting), self.max_batch)
        batch = [self._waiting.popleft() for _ in range(size)]
        self._size_under_way += size
        self._under_way.add(self.loop.create_task(self._work_on(batch)))

    async def _work_on(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        """Have a batch worked on, tell the submitters, and begin the next batch."""
        results: Sequence[Result] | Exception
        try:
            results = await self.work([item for item, _ in batch])
            if len(results) != len(batch):
                raise ValueError(f"{len(results)} results for {len(batch)} items; must be as many")
        except Exception as error:  # each submitter is told, the next batch is worked on
            results = error
        for place, (_, future) in enumerate(batch):
            if future.done():  # the submitter has gone
                continue
            if isinstance(results, Exception):
                future.set_exception(results)
            else:
                future.set_result(results[place])
        share = (self._size_under_way + len(self._waiting)) // self.at_once
        self._enough = min(max(1, share), self.max_batch)
        self._size_under_way -= len(batch)
        task = asyncio.current_task()
        assert task is not None
        self._under_way.discard(task)
        self._begin_if_due()
        if not (self._waiting or self._under_way):
            self._idle.set()


async def run_in_thread(
    thread: ThreadPoolExecutor,
    work: Callable[Parameters, Result],
    *arguments: Parameters.args,
    **options: Parameters.kwargs,
) -> Result:
    """Return what work returns that runs in a thread; what would end the event loop is an error."""

    def run() -> Result:
        try:
            return work(*arguments, **options)
        except Exception:
            raise
        except BaseException as error:  # such as SystemExit
            raise RuntimeError(f"the work ended with {type(error).__name__}") from None

    return await asyncio.get_running_loop().run_in_executor(thread, run)
