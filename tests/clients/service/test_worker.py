"""A worker in a process of its own: the same answers, errors as they were, and how it ends."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from clients.service import Query, load_served
from clients.service.model_offer import ModelOffer
from clients.service.onnx_heads import use_onnx_heads
from clients.service.private_answers import PrivateAnswer
from clients.service.worker import (
    AnsweringError,
    AnswerWorker,
    ProcessWorker,
)
from fedcel.errors import LedgerError
from fedcel.privacy.ledger import MICRO, Ledger
from sims.commands.onnx_export import convert_heads
from tests.clients.serving import (
    ThreadWorker,
    fork_worker,
    made_run,
    make_offer,
)


@pytest.fixture(autouse=True)
def fork_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the processes: an interpreter loads for five seconds."""
    monkeypatch.setattr("clients.service.worker.start_process", fork_worker)


def offer(engine: str = "torch", **changes: object) -> ModelOffer:
    run = made_run(**changes)
    model = load_served(run)
    if engine == "onnx":
        model = use_onnx_heads(model, convert_heads(model))
    return make_offer(run, model)


def query(served: ModelOffer, name: str, value: float) -> Query:
    message = np.full(served.model.net.features, value, "<f4").tobytes()
    return Query("phone", name, message, wants_uncertainty=False)


def with_worker(
    path: Path,
    served: ModelOffer,
    scene: Callable[[ProcessWorker], Awaitable[None]],
    worker: ProcessWorker | None = None,
) -> None:
    """Play a scene at a worker of a model, whose client `phone` has 100 epsilon."""
    with Ledger.open(path) as ledger:
        ledger.grant("phone", 100 * MICRO)

    async def play(worker: ProcessWorker) -> None:
        await worker.open(path, served, lambda: None)
        await scene(worker)
        await worker.close()

    if worker is not None:
        asyncio.run(play(worker))
        return
    with ProcessWorker() as started:
        asyncio.run(play(started))


def fail_with_words(worker: AnswerWorker) -> None:
    raise ValueError("secret words")


class Unsendable:
    """A mechanism that cannot be copied: in the first process, or in the second."""

    name, epsilon, delta, protects = "unsendable", 1.0, 0.0, "nothing"
    unit = "logits"

    def __init__(self, is_sent: bool) -> None:
        self.is_sent = is_sent

    def __reduce__(self) -> tuple[object, ...]:
        """Fail now, or let the other side fail."""
        if not self.is_sent:
            raise TypeError("secret words")
        return fail_with_words, (None,)


def forbid_writing(worker: AnswerWorker) -> None:
    """Let the ledger be read alone."""
    worker.ledger.db.execute("PRAGMA query_only = ON")


def linger(worker: AnswerWorker, seconds: float) -> None:
    time.sleep(seconds)


@pytest.mark.parametrize(
    ("engine", "changes"),
    [
        ("torch", {"privacy.mechanism": "label-only"}),
        ("onnx", {"privacy.mechanism": "discrete-laplace", "net.features": 6}),
    ],
)
def test_a_process_answers_as_a_thread_does(
    tmp_path: Path, engine: str, changes: dict[str, object]
) -> None:
    """Whatever the mechanism and the engine; one ledger, so that a repeat elsewhere is free."""
    served = offer(engine, **changes)
    told: list[bytes] = []

    async def ask(worker: ProcessWorker, is_fresh: bool) -> None:
        replies, phases = await worker.call(AnswerWorker.answer, [query(served, "request-1", 0.5)])
        assert [*phases] == ["heads", "noise", "write", "charge"]
        (answer,) = replies
        assert isinstance(answer, PrivateAnswer) and answer.is_fresh == is_fresh
        told.append(answer.body)
        balance = await worker.call(AnswerWorker.ask_ledger, Ledger.balance, "phone")
        assert balance.spent == 4 * MICRO

    path = tmp_path / "ledger.db"
    with_worker(path, served, lambda worker: ask(worker, True))
    with_worker(path, served, lambda worker: ask(worker, False), ThreadWorker())
    assert told[0] == told[1]


def test_errors_come_back_with_words_of_their_own_alone(tmp_path: Path) -> None:
    """The ledger's say what to do; an unexpected one says where it arose. Then it goes on."""

    async def scene(worker: ProcessWorker) -> None:
        with pytest.raises(AnsweringError, match=r"ValueError at .*test_worker.py") as caught:
            await worker.call(fail_with_words)
        assert "secret" not in str(caught.value)
        await worker.call(forbid_writing)
        with pytest.raises(LedgerError, match="it is read-only"):
            await worker.call(AnswerWorker.answer, [query(served, "request-1", 0.5)])
        asked = [
            worker.call(AnswerWorker.ask_ledger, Ledger.balance, name)
            for name in ("phone", "unknown")
        ]
        assert [balance.granted for balance in await asyncio.gather(*asked)] == [100 * MICRO, 0]

    served = offer()
    with_worker(tmp_path / "ledger.db", served, scene)


def test_a_worker_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    """No ledger, a model that cannot be rehearsed, what cannot be sent, here or there."""
    (tmp_path / "text").write_text("no ledger, but longer than the head of a database " * 9)
    served, path = offer(), tmp_path / "ledger.db"
    broken = replace(served.model, heads={"weight": torch.zeros(1, 10, 3)})

    async def open_badly() -> None:
        for ledger, model, error, words in (
            (tmp_path / "text", served, LedgerError, "no ledger, or damaged"),
            (path, served._replace(model=broken), AnsweringError, "KeyError at"),
            (path, served._replace(mechanism=Unsendable(False)), TypeError, "secret words"),
            (path, served._replace(mechanism=Unsendable(True)), AnsweringError, "ValueError at"),
        ):
            with ProcessWorker() as worker:
                with pytest.raises(error, match=words):
                    await worker.open(ledger, model, lambda: None)
                await worker.close()

    asyncio.run(open_badly())


def test_a_worker_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end waits so long, and no longer."""
    monkeypatch.setattr("clients.service.worker.CLOSE_SECONDS", 0.2)

    async def scene(worker: ProcessWorker) -> None:
        asyncio.get_running_loop().create_task(ignore_end(worker.call(linger, 60)))
        await asyncio.sleep(0.1)

    started = time.monotonic()
    with_worker(tmp_path / "ledger.db", offer(), scene)
    assert time.monotonic() - started < 20


async def ignore_end(asked: Awaitable[None]) -> None:
    """Wait for an answer that never comes."""
    with suppress(LedgerError):
        await asked


def test_a_killed_process_is_told_to_all_who_wait(tmp_path: Path) -> None:
    """Once, at once; what is asked later is refused."""
    ends: list[float] = []

    async def scene(worker: ProcessWorker) -> None:
        await worker.open(tmp_path / "ledger.db", offer(), lambda: ends.append(time.monotonic()))
        await worker.call(linger, 0.1)
        assert not ends
        waiting = [asyncio.create_task(worker.call(linger, 60)) for _ in range(2)]
        await asyncio.sleep(0.2)
        worker._process.kill()
        for task in waiting:
            with pytest.raises(LedgerError, match="has ended"):
                await asyncio.wait_for(task, 10)
        with pytest.raises(LedgerError, match="start the service again"):
            await worker.call(AnswerWorker.ask_ledger, Ledger.probe)
        await worker.close()

    with ProcessWorker() as worker:
        asyncio.run(scene(worker))
    assert len(ends) == 1
