"""A bounded queue before one thread: what waits is answered together."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

LINGER = 0.001
"""Seconds that the first of a batch waits for others: most of a small batch's cost is its own."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class FullError(Exception):
    """The queue is full, or closed for the end."""


class Batcher(Generic[Item, Result]):
    """Hands at most `size` waiting items at once to `work`, one batch at a time, in `thread`.

    At most `queue` items wait. Made and used within one event loop.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Item]], Sequence[Result]],
        thread: ThreadPoolExecutor,
        size: int,
        queue: int,
    ) -> None:
        self.work = work
        self.thread = thread
        self.size = size
        self._waiting: asyncio.Queue[tuple[Item, asyncio.Future[Result]]] = asyncio.Queue(queue)
        self._closed = False
        self._loop = asyncio.create_task(self._run())

    def waiting(self) -> int:
        """Return how many items wait."""
        return self._waiting.qsize()

    async def submit(self, item: Item) -> Result:
        """Return the item's result; FullError at once where there is no room."""
        if self._closed:
            raise FullError
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        try:
            self._waiting.put_nowait((item, future))
        except asyncio.QueueFull:
            raise FullError from None
        return await future

    async def close(self) -> None:
        """Take no more, answer all that waits, end."""
        self._closed = True
        await self._waiting.join()
        self._loop.cancel()
        await asyncio.gather(self._loop, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            batch = [await self._waiting.get()]
            await asyncio.sleep(LINGER)
            while len(batch) < self.size and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            await self._answer(batch)
            for _ in batch:
                self._waiting.task_done()

    async def _answer(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        loop = asyncio.get_running_loop()
        items = [item for item, _ in batch]
        waiting = [future for _, future in batch]
        try:
            results = await loop.run_in_executor(self.thread, self.work, items)
        except Exception as error:  # each asker is told, the loop goes on
            for future in waiting:
                if not future.done():
                    future.set_exception(error)
            return
        for future, result in zip(waiting, results, strict=True):
            if not future.done():  # the asker may have gone
                future.set_result(result)
