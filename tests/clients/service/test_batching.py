"""The queue before the one thread."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from clients.service.batching import Batcher, FullError


class Gate:
    """Work that waits until it may go on."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.batches: list[list[int]] = []

    def __call__(self, items: Sequence[int]) -> list[int]:
        """Return squares; 13 brings bad luck."""
        self.open.wait(5)
        self.batches.append(list(items))
        if 13 in items:
            raise ValueError("unlucky")
        return [item**2 for item in items]


def test_what_waits_is_answered_together_and_the_queue_is_bounded() -> None:
    """One at work, four wait, the sixth is told at once; then one batch of at most three."""

    async def scene() -> None:
        gate = Gate()
        with ThreadPoolExecutor(1) as thread:
            batcher = Batcher(gate, thread, size=3, queue=4)
            first = asyncio.create_task(batcher.submit(0))
            await asyncio.sleep(0.05)
            others = [asyncio.create_task(batcher.submit(i)) for i in range(1, 5)]
            await asyncio.sleep(0.05)
            assert batcher.waiting() == 4
            with pytest.raises(FullError):
                await batcher.submit(5)
            gate.open.set()
            assert await asyncio.gather(first, *others) == [0, 1, 4, 9, 16]
            assert gate.batches == [[0], [1, 2, 3], [4]]
            await batcher.close()

    asyncio.run(scene())


def test_closing_answers_all_that_waits_and_takes_nothing_more() -> None:
    """The drain."""

    async def scene() -> None:
        gate = Gate()
        with ThreadPoolExecutor(1) as thread:
            batcher = Batcher(gate, thread, size=2, queue=9)
            waiting = [asyncio.create_task(batcher.submit(i)) for i in range(5)]
            await asyncio.sleep(0.02)
            closing = asyncio.create_task(batcher.close())
            await asyncio.sleep(0.02)
            with pytest.raises(FullError):
                await batcher.submit(9)
            assert not closing.done()
            gate.open.set()
            await closing
            assert [await task for task in waiting] == [0, 1, 4, 9, 16]

    asyncio.run(scene())


def test_an_error_reaches_its_batch_and_the_loop_goes_on() -> None:
    """Also when an asker is gone before the answer."""

    async def scene() -> None:
        gate = Gate()
        with ThreadPoolExecutor(1) as thread:
            batcher = Batcher(gate, thread, size=8, queue=9)
            gone = asyncio.create_task(batcher.submit(2))
            await asyncio.sleep(0.02)
            gone.cancel()
            unlucky = asyncio.create_task(batcher.submit(13))
            gate.open.set()
            with pytest.raises(ValueError, match="unlucky"):
                await unlucky
            assert await batcher.submit(3) == 9
            await batcher.close()

    asyncio.run(scene())
