"""A bounded queue before one thread: items that wait at the same time are worked on together."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

LINGER_SECONDS = 0.001
"""How long the first of a batch waits for others: most of a small batch's cost is its own."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class FullError(Exception):
    """The queue is full, or closed for the end."""


class Batcher(Generic[Item, Result]):
    """Hands items to `work` in batches, one batch at a time; `start` it before anything else.

    `work` runs in the thread and returns one result for each item. At most `max_waiting` items
    wait, at most `max_batch` are a batch. Made, started and closed within one event loop.
    """

    _loop: asyncio.Task[None]

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
        self._waiting: asyncio.Queue[tuple[Item, asyncio.Future[Result]]] = asyncio.Queue(
            max_waiting
        )
        self._is_closed = False

    async def start(self) -> None:
        """Begin to work on what is submitted."""
        self._loop = asyncio.create_task(self._run())

    def count_waiting(self) -> int:
        """Return how many items wait."""
        return self._waiting.qsize()

    async def submit(self, item: Item) -> Result:
        """Return the item's result; FullError at once where there is no room."""
        if self._is_closed:
            raise FullError
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        try:
            self._waiting.put_nowait((item, future))
        except asyncio.QueueFull:
            raise FullError from None
        return await future

    async def close(self) -> None:
        """Take no more, answer all that waits, end."""
        self._is_closed = True
        await self._waiting.join()
        self._loop.cancel()
        await asyncio.gather(self._loop, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            batch = [await self._waiting.get()]
            await asyncio.sleep(LINGER_SECONDS)
            while len(batch) < self.max_batch and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            await self._work_on(batch)
            for _ in batch:
                self._waiting.task_done()

    async def _work_on(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        loop = asyncio.get_running_loop()
        items = [item for item, _ in batch]
        futures = [future for _, future in batch]
        try:
            results = await loop.run_in_executor(self.thread, self.work, items)
            if len(results) != len(items):
                raise ValueError(f"{len(results)} results for {len(items)} items; must be as many")
        except Exception as error:  # each submitter is told, the loop goes on
            for future in futures:
                if not future.done():
                    future.set_exception(error)
            return
        for future, result in zip(futures, results, strict=True):
            if not future.done():  # the submitter may have gone
                future.set_result(result)
