"""How batches come about, and how they end."""

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from clients.service.problems import ProblemError
from clients.service.worker import Batcher
from tests.clients.serving import run_in_thread


class Gate:
    """Work that waits until it may go on."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.batches: list[list[int]] = []

    def __call__(self, items: Sequence[int]) -> list[int]:
        """Return squares; 13 brings bad luck, 14 would end the process."""
        self.open.wait(30)
        self.batches.append(list(items))
        if 13 in items:
            raise ValueError("unlucky")
        if 14 in items:
            raise SystemExit(1)
        return [item**2 for item in items]


def test_what_waits_is_answered_together_and_the_queue_is_bounded() -> None:
    """One at work, four wait, the sixth is told at once; then one batch of at most three."""

    async def scene() -> None:
        gate = Gate()
        with ThreadPoolExecutor(1) as thread:
            batcher = Batcher(
                partial(run_in_thread, thread, gate), max_batch=3, max_waiting=4, at_once=1
            )
            first = asyncio.create_task(batcher.submit(0))
            await asyncio.sleep(0.05)
            waiting = [asyncio.create_task(batcher.submit(i)) for i in range(1, 5)]
            await asyncio.sleep(0.05)
            assert len(batcher.waiting) == 4
            with pytest.raises(ProblemError):
                await batcher.submit(5)
            gate.open.set()
            assert await asyncio.gather(first, *waiting) == [0, 1, 4, 9, 16]
            assert gate.batches == [[0], [1, 2, 3], [4]]
            await batcher.close()

    asyncio.run(scene())


def test_answers_that_do_not_match_in_number_fail_their_own_questions() -> None:
    """The loop goes on, and closing ends."""

    async def scene() -> None:
        with ThreadPoolExecutor(1) as thread:
            work = partial(run_in_thread, thread, lambda items: [i for i in items if i])
            batcher = Batcher(work, max_batch=2, max_waiting=9, at_once=1)
            with pytest.raises(ValueError, match="0 results for 1"):
                await asyncio.wait_for(batcher.submit(0), 30)
            assert await asyncio.wait_for(batcher.submit(3), 30) == 3
            await asyncio.wait_for(batcher.close(), 30)

    asyncio.run(scene())


def test_closing_answers_all_that_waits_and_takes_nothing_more() -> None:
    async def scene() -> None:
        gate = Gate()
        with ThreadPoolExecutor(1) as thread:
            batcher = Batcher(
                partial(run_in_thread, thread, gate), max_batch=2, max_waiting=9, at_once=1
            )
            waiting = [asyncio.create_task(batcher.submit(i)) for i in range(5)]
            await asyncio.sleep(0.02)
            closing = asyncio.create_task(batcher.close())
            await asyncio.sleep(0.02)
            with pytest.raises(ProblemError):
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
            batcher = Batcher(
                partial(run_in_thread, thread, gate), max_batch=8, max_waiting=9, at_once=1
            )
            gone = asyncio.create_task(batcher.submit(2))
            await asyncio.sleep(0.02)
            gone.cancel()
            unlucky = asyncio.create_task(batcher.submit(13))
            gate.open.set()
            with pytest.raises(ValueError, match="unlucky"):
                await unlucky
            with pytest.raises(RuntimeError, match="ended with SystemExit"):
                await batcher.submit(14)
            assert await batcher.submit(3) == 9
            await batcher.close()

    asyncio.run(scene())


def test_a_batch_waits_for_all_that_were_under_way() -> None:
    """Eight that ask again at once are one batch again; one alone is not kept waiting."""

    async def scene() -> None:
        batches: list[int] = []

        def work(items: Sequence[int]) -> Sequence[int]:
            batches.append(len(items))
            return items

        with ThreadPoolExecutor(1) as thread:
            batcher = Batcher(
                partial(run_in_thread, thread, work), max_batch=64, max_waiting=99, at_once=1
            )

            async def ask_again() -> None:
                for turn in range(20):
                    await batcher.submit(turn)

            await asyncio.gather(*(ask_again() for _ in range(8)))
            assert batches[5:15] == [8] * 10 and sum(batches) == 160
            await batcher.submit(0)  # waits for the seven others, once
            started = time.perf_counter()
            for _ in range(20):
                await batcher.submit(0)
            assert time.perf_counter() - started < 20 * 0.2
            await batcher.close()

    asyncio.run(scene())


def test_two_batches_at_once_share_what_is_under_way() -> None:
    """A second one begins beside the first; a third waits for half of all, or for both to end."""

    async def scene() -> None:
        under_way: list[tuple[list[int], asyncio.Future[None]]] = []

        async def work(items: Sequence[int]) -> Sequence[int]:
            end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            under_way.append((list(items), end))
            await end
            return items

        async def submit(*items: int) -> None:
            for item in items:
                waiting.append(asyncio.create_task(batcher.submit(item)))
            await asyncio.sleep(0.01)

        async def finish(batch: list[int]) -> None:
            items, end = under_way.pop(0)
            assert items == batch
            end.set_result(None)
            await asyncio.sleep(0.01)

        waiting: list[asyncio.Task[int]] = []
        batcher = Batcher(work, max_batch=64, max_waiting=99, at_once=2)
        await submit(0)
        await submit(1)
        await submit(2, 3, 4, 5)
        assert [items for items, _ in under_way] == [[0], [1]]
        await finish([0])
        await submit(6)
        assert [items for items, _ in under_way] == [[1], [2, 3, 4, 5]]
        await finish([1])
        await submit(7)
        assert [items for items, _ in under_way] == [[2, 3, 4, 5]]  # six are two halves of three
        await submit(8)
        assert [items for items, _ in under_way] == [[2, 3, 4, 5], [6, 7, 8]]
        await submit(9)
        await finish([2, 3, 4, 5])
        await finish([6, 7, 8])
        await finish([9])
        assert [await task for task in waiting] == list(range(10))
        await batcher.close()

    asyncio.run(scene())
