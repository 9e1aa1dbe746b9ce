"""A desk in a process of its own: the same answers, errors as they were, and how it ends."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from clients.service import Query, load_served
from clients.service.answer_desk import AnswerDesk, DeskLink, ThreadDesk
from clients.service.charged_answers import PrivateAnswer
from clients.service.desk_process import AnsweringError, ProcessDesk
from clients.service.onnx_heads import use_onnx_heads
from clients.service.problems import ProblemKind
from clients.service.versions import ModelOffer, Reload
from fedcel.errors import LedgerError
from fedcel.privacy.ledger import MICRO, Ledger
from sims.commands.onnx_export import convert_heads
from tests.clients.serving import Running, made_run, make_offer, running, wait_until


def offer(engine: str = "torch", **changes: object) -> ModelOffer:
    """Return what a run offers."""
    run = made_run(**changes)
    model = load_served(run)
    if engine == "onnx":
        model = use_onnx_heads(model, convert_heads(model))
    return make_offer(run, model)


def query(served: ModelOffer, name: str, value: float) -> Query:
    """Return a query for a version."""
    message = np.full(served.model.net.features, value, "<f4").tobytes()
    return Query("phone", name, message, wants_uncertainty=False, version=served.model.version)


def with_desk(
    path: Path, scene: Callable[[DeskLink], Awaitable[None]], desk: DeskLink | None = None
) -> None:
    """Play a scene at a desk whose client `phone` has 100 epsilon."""
    with Ledger.open(path) as ledger:
        ledger.grant("phone", 100 * MICRO)

    async def play(desk: DeskLink) -> None:
        await desk.open(path, lambda: None)
        await scene(desk)
        await desk.close()

    if desk is not None:
        asyncio.run(play(desk))
        return
    with ProcessDesk() as started:
        asyncio.run(play(started))


def fail_with_words(desk: AnswerDesk) -> None:
    """Fail as code does that repeats what was sent."""
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


def count_versions(desk: AnswerDesk) -> int:
    """Return how many versions are answered."""
    return len(desk._answerers)


def forbid_writing(desk: AnswerDesk) -> None:
    """Let the ledger be read alone."""
    desk.ledger.db.execute("PRAGMA query_only = ON")


def linger(desk: AnswerDesk, seconds: float) -> None:
    """Be at work."""
    time.sleep(seconds)


def test_a_process_answers_as_a_thread_does(tmp_path: Path) -> None:
    """Whatever the mechanism and the engine; one ledger, so that a repeat elsewhere is free."""
    offers = [
        offer(**{"privacy.mechanism": "label-only"}),
        offer("onnx", **{"privacy.mechanism": "discrete-laplace", "net.features": 6}),
    ]
    told: list[bytes] = []

    async def ask(desk: DeskLink, is_fresh: bool) -> None:
        for served in offers:
            await desk.call(AnswerDesk.add_version, served)
        queries = [query(served, f"request-{k}", 0.5) for k, served in enumerate(offers)]
        replies, phases = await desk.call(AnswerDesk.answer, queries)
        assert [name for name, _ in phases] == ["heads", "noise", "write", "charge"] * 2
        answers = [reply for reply in replies if isinstance(reply, PrivateAnswer)]
        assert [answer.is_fresh for answer in answers] == [is_fresh] * 2
        told.append(b"".join(answer.body for answer in answers))
        assert (await desk.call(AnswerDesk.read_balance, "phone")).spent == 8 * MICRO
        await desk.call(AnswerDesk.remove_version, offers[0].model.version)

    with_desk(tmp_path / "ledger.db", lambda desk: ask(desk, True))
    with_desk(tmp_path / "ledger.db", lambda desk: ask(desk, False), ThreadDesk())
    assert told[0] == told[1]


def test_errors_come_back_with_words_of_their_own_alone(tmp_path: Path) -> None:
    """The ledger's say what to do; an unexpected one says where it arose. Then it goes on."""

    async def scene(desk: DeskLink) -> None:
        with pytest.raises(AnsweringError, match=r"ValueError at .*test_desk_process.py") as caught:
            await desk.call(fail_with_words)
        assert "secret" not in str(caught.value)
        await desk.call(forbid_writing)
        with pytest.raises(LedgerError, match="it is read-only"):
            await desk.call(AnswerDesk.answer, [query(served, "request-1", 0.5)])
        assert (await desk.call(AnswerDesk.read_balance, "phone")).spent == 0

    served = offer()

    async def add_first(desk: DeskLink) -> None:
        await desk.call(AnswerDesk.add_version, served)
        await scene(desk)

    with_desk(tmp_path / "ledger.db", add_first)
    (tmp_path / "text").write_text("no ledger, but longer than the head of a database " * 9)

    async def open_text(desk: DeskLink) -> None:
        with pytest.raises(LedgerError, match="no ledger, or damaged"):
            await desk.open(tmp_path / "text", lambda: None)
        await desk.close()

    with ProcessDesk() as desk:
        asyncio.run(open_text(desk))


def test_what_cannot_be_sent_is_refused_and_nobody_gets_another_s_reply(tmp_path: Path) -> None:
    """Here or there; a version that cannot be rehearsed does not stay, and the desk goes on."""
    served = offer()

    async def scene(desk: DeskLink) -> None:
        with pytest.raises(TypeError):
            await desk.call(AnswerDesk.add_version, served._replace(mechanism=Unsendable(False)))
        with pytest.raises(AnsweringError, match="ValueError at") as caught:
            await desk.call(AnswerDesk.add_version, served._replace(mechanism=Unsendable(True)))
        assert "secret" not in str(caught.value)
        broken = replace(served.model, heads={"weight": torch.zeros(1, 10, 3)})
        with pytest.raises(AnsweringError, match="KeyError at"):
            await desk.call(AnswerDesk.add_version, served._replace(model=broken))
        assert await desk.call(count_versions) == 0
        await desk.call(AnswerDesk.add_version, served)
        assert await desk.call(count_versions) == 1
        asked = [desk.call(AnswerDesk.read_balance, name) for name in ("phone", "stranger")]
        assert [balance.granted for balance in await asyncio.gather(*asked)] == [100 * MICRO, 0]

    with_desk(tmp_path / "ledger.db", scene)


def test_a_desk_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end waits so long, and no longer."""
    monkeypatch.setattr("clients.service.desk_process.CLOSE_SECONDS", 0.2)

    async def scene(desk: DeskLink) -> None:
        asyncio.get_running_loop().create_task(ignore_end(desk.call(linger, 60)))
        await asyncio.sleep(0.1)

    started = time.monotonic()
    with_desk(tmp_path / "ledger.db", scene)
    assert time.monotonic() - started < 20


async def ignore_end(asked: Awaitable[None]) -> None:
    """Wait for an answer that never comes."""
    with suppress(LedgerError):
        await asked


def test_a_killed_process_is_told_to_all_who_wait(tmp_path: Path) -> None:
    """Once, at once; what is asked later is refused, and signals to the group end nothing."""
    ends: list[float] = []

    async def scene(desk: ProcessDesk) -> None:
        await desk.open(tmp_path / "ledger.db", lambda: ends.append(time.monotonic()))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            desk._process.send_signal(number)
        await desk.call(linger, 0.1)
        assert not ends
        waiting = [asyncio.create_task(desk.call(linger, 60)) for _ in range(2)]
        await asyncio.sleep(0.2)
        desk._process.kill()
        for task in waiting:
            with pytest.raises(LedgerError, match="has ended"):
                await asyncio.wait_for(task, 10)
        with pytest.raises(LedgerError, match="start the service again"):
            await desk.call(AnswerDesk.probe)
        await desk.close()

    with ProcessDesk() as desk:
        asyncio.run(scene(desk))
    assert len(ends) == 1


def test_a_service_with_a_process(tmp_path: Path) -> None:
    """Answers, a new version while the old one is asked, its end, and the end of the process."""
    old, new = offer(), offer(seed=1)
    with (
        ProcessDesk() as desk,
        running(tmp_path, reload=Reload(lambda: new, grace_seconds=3600), desk=desk) as up,
    ):
        first, again = ask(up, old, "request-1"), ask(up, old, "request-2")
        assert first.json()["fresh"] and not again.json()["fresh"]
        assert first.json()["values"] == again.json()["values"]
        up.service.request_reload()
        wait_until(lambda: ask(up, new, "request-3").status_code == 200)
        assert ask(up, old, "request-4", 0.25).status_code == 200
        up.service._loop.call_soon_threadsafe(up.service.end_version, old.model.version)
        wait_until(lambda: ask(up, old, "request-5").status_code == 409)
        wait_until(lambda: count_answered(up) == 1)
        key = {"Authorization": f"Bearer {up.key}"}
        assert httpx.get(f"{up.url}/v1/budget", headers=key).json()["spent"] == 12
        assert 'phase="charge"' in httpx.get(f"{up.url}/metrics").text
        failures: list[bool] = []
        up.service.on_failure = lambda: failures.append(True)
        desk._process.kill()
        wait_until(lambda: bool(failures))
        reply = ask(up, new, "request-6", 0.75)
        assert (reply.status_code, reply.json()["type"]) == (503, ProblemKind.LEDGER.urn)
        assert httpx.get(f"{up.url}/readyz").status_code == 503
        assert "ended by itself" in str(up.service.failure)


def count_answered(up: Running) -> int:
    """Return how many versions a service's desk answers."""
    counting = up.service.desk.call(count_versions)
    return asyncio.run_coroutine_threadsafe(counting, up.service._loop).result(20)


def ask(up: Running, served: ModelOffer, name: str, value: float = 0.5) -> httpx.Response:
    """Ask a version in bytes."""
    return httpx.post(
        f"{up.url}/v1/query",
        content=query(served, name, value).message,
        headers={
            "authorization": f"Bearer {up.key}",
            "content-type": "application/octet-stream",
            "idempotency-key": name,
            "model-version": served.model.version,
        },
    )
