"""The service over a real socket: what it says yes and no to, and what never leaves it."""

import asyncio
import errno
import math
import re
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal
from unittest.mock import Mock

import httpx
import numpy as np
import pytest
from fastapi import Request, Response
from torch import Tensor

from clients.service import service as service_module
from clients.service.access import add_key, key_table_path
from clients.service.app import ServiceApp
from clients.service.problems import PROBLEM_MEDIA_TYPE, ProblemKind
from clients.service.service import Limits, Service
from fedcel.privacy.ledger import MICRO, Ledger, sqlite_database
from tests.clients.serving import Running, ThreadWorker, made_run, make_offer, running, wait_until

GOOD = np.linspace(-1, 1, 8).astype("<f4").tobytes()


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with a large budget."""
    with running(tmp_path_factory.mktemp("service")) as service:
        yield service


def post(up: Running, content: bytes = GOOD, **headers: str) -> httpx.Response:
    """Ask in bytes, see `Running.ask`."""
    return up.ask(content, **headers)


def post_values(up: Running, values: Sequence[float] = (0.5,) * 8) -> httpx.Response:
    """Ask about a message of these values."""
    return post(up, np.array(values, "<f4").tobytes())


def get(up: Running, path: str) -> httpx.Response:
    """Read an address with the key."""
    return httpx.get(f"{up.url}{path}", headers={"Authorization": f"Bearer {up.key}"})


def problem(reply: httpx.Response, kind: ProblemKind) -> dict[str, object]:
    """Return a refusal of the right kind and form; RFC 9457."""
    body: dict[str, object] = reply.json()
    assert reply.headers["content-type"] == PROBLEM_MEDIA_TYPE
    assert reply.status_code == body["status"] == kind.status, body
    assert (body["type"], body["title"]) == (kind.urn, kind.title)
    return body


def test_equal_messages_and_ids_get_one_answer(up: Running) -> None:
    """It is paid once."""
    first, again = post(up, idempotency_key="request-same"), post(up)
    retry = post(up, idempotency_key="request-same")
    assert [reply.json().pop("fresh") for reply in (first, again, retry)] == [True, False, False]
    assert first.json()["values"] == again.json()["values"] == retry.json()["values"]
    assert first.json()["left"] == again.json()["left"]
    assert first.headers["cache-control"] == "no-store"


def test_the_declared_route_is_the_one_that_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No layer before it has an answer of its own."""
    path, worker = tmp_path / "ledger.db", ThreadWorker()
    app = ServiceApp(Service(make_offer(made_run()), path, Limits(), worker=worker))
    (route,) = [route for route in app.routes if getattr(route, "path", "") == "/v1/query"]

    async def answer(request: Request) -> Response:
        return Response("of the route")

    async def ask() -> str:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return (await client.post("/v1/query")).text

    assert "urn:fedcel:problem:unauthenticated" in asyncio.run(ask())
    monkeypatch.setattr(route, "endpoint", answer)
    assert asyncio.run(ask()) == "of the route"


def test_uncertainty_is_asked_for_in_the_address(up: Running) -> None:
    """Or not, as without it; anything else is refused."""
    headers = {
        "authorization": f"Bearer {up.key}",
        "content-type": "application/octet-stream",
        "idempotency-key": "request-doubt",
        "model-version": up.model.version,
    }

    def ask(word: str) -> httpx.Response:
        address = f"{up.url}/v1/query?uncertainty={word}"
        return httpx.post(address, content=np.full(8, 0.7, "<f4").tobytes(), headers=headers)

    problem(ask("perhaps"), ProblemKind.INVALID)
    answer = ask("true").json()
    assert isinstance(answer["entropy"], float) and isinstance(answer["information"], float)


@pytest.mark.parametrize(
    ("content", "headers", "kind"),
    [
        (GOOD, {"authorization": ""}, ProblemKind.UNAUTHENTICATED),
        (GOOD, {"authorization": "Bearer no"}, ProblemKind.UNAUTHENTICATED),
        (GOOD[:-4], {}, ProblemKind.INVALID),
        (GOOD[:-1], {}, ProblemKind.INVALID),
        (b"", {}, ProblemKind.INVALID),
        (GOOD + b"0", {}, ProblemKind.TOO_LARGE),
        (np.full(8, np.nan, "<f4").tobytes(), {}, ProblemKind.INVALID),
        (np.full(8, -np.inf, "<f4").tobytes(), {}, ProblemKind.INVALID),
        (np.full(8, 1e30, "<f4").tobytes(), {}, ProblemKind.INVALID),
        (GOOD, {"model_version": "0" * 32}, ProblemKind.MODEL_VERSION),
        (GOOD, {"model_version": ""}, ProblemKind.MODEL_VERSION),
        (GOOD, {"idempotency_key": "short"}, ProblemKind.INVALID),
        (GOOD, {"idempotency_key": ""}, ProblemKind.INVALID),
        (GOOD, {"content_type": "text/plain"}, ProblemKind.MEDIA_TYPE),
        (GOOD, {"content_type": ""}, ProblemKind.MEDIA_TYPE),
        (b"{}", {"content_type": "application/json"}, ProblemKind.MEDIA_TYPE),
    ],
)
def test_what_is_wrong_is_told_and_costs_nothing(
    up: Running, content: bytes, headers: dict[str, str], kind: ProblemKind
) -> None:
    """The kind, and no change of the budget."""
    before = get(up, "/v1/budget").json()["spent"]
    problem(post(up, content, **headers), kind)
    assert get(up, "/v1/budget").json()["spent"] == before


def test_the_card_says_what_is_served(up: Running) -> None:
    """And the encoder is the one it states."""
    from hashlib import sha256

    card = get(up, "/v1/model").json()
    assert card["model"] == up.model.version
    assert (card["features"], card["classes"], card["samples"]) == (8, 10, 3)
    assert card["price"] == {"answer": 4.0, "uncertainty": 4.0}
    data = get(up, card["encoder"]["url"]).content
    assert sha256(data).hexdigest() == card["encoder"]["sha256"]
    assert len(data) == card["encoder"]["bytes"]


def test_the_encoder_is_written_out_before_anybody_asks(up: Running) -> None:
    """Its digest takes a while for a large one; no request waits for it."""
    assert up.service.model_card.encoder.bytes == len(vars(up.model)["encoder"])


def test_health_numbers_and_unknown_addresses(up: Running) -> None:
    """No key needed for the first, none of a client in them."""
    assert post(up).status_code == 200
    assert httpx.get(f"{up.url}/healthz").status_code == 200
    assert httpx.get(f"{up.url}/readyz").status_code == 200
    text = httpx.get(f"{up.url}/metrics").text
    assert 'fedcel_requests_total{route="/v1/query",status="200"}' in text
    assert 'fedcel_phase_seconds_count{phase="noise"}' in text
    assert "fedcel_epsilon_spent_total" in text and "phone" not in text
    problem(httpx.get(f"{up.url}/v2"), ProblemKind.NOT_FOUND)
    problem(httpx.get(f"{up.url}/v1/query"), ProblemKind.METHOD)
    problem(httpx.post(f"{up.url}/v1/query%0A"), ProblemKind.NOT_FOUND)
    for path in ("/v1/model", "/v1/encoder", "/v1/budget"):
        problem(httpx.get(f"{up.url}{path}"), ProblemKind.UNAUTHENTICATED)


def test_a_client_that_asks_too_often_is_told_when_to_come_again(tmp_path: Path) -> None:
    """One question in 100 seconds."""
    with running(tmp_path, limits=Limits(rate=0.01)) as up:
        assert post(up).status_code == 200
        slow = post(up)
        problem(slow, ProblemKind.RATE)
        assert 50 <= int(slow.headers["retry-after"]) <= 100


def test_each_address_has_a_limit_of_its_own(tmp_path: Path) -> None:
    """A client that reads too often may still ask; each address that is read counts by itself."""
    with running(tmp_path, limits=Limits(rate=0.01)) as up:
        for path in ("/v1/model", "/v1/budget"):
            assert get(up, path).status_code == 200
            problem(get(up, path), ProblemKind.RATE)
            problem(get(up, f"{path}%0A"), ProblemKind.NOT_FOUND)
        assert post_values(up).status_code == 200


def test_the_first_end_of_a_key_is_measured(tmp_path: Path) -> None:
    """Infinite for keys that last, undefined where their file is damaged."""
    with running(tmp_path) as up:

        def measure() -> float:
            text = httpx.get(f"{up.url}/metrics").text
            return float(re.findall(r"^fedcel_key_expiry_seconds (.*)$", text, re.M)[0])

        assert measure() == math.inf
        keys, now = key_table_path(up.ledger), time.time()
        add_key(keys, "phone", 30, now)
        add_key(keys, "phone", 2, now)
        add_key(keys, "phone", 1, now - 1e6)  # it has ended
        assert abs(measure() - 2 * 86_400) < 60
        keys.write_text("damaged")
        assert math.isnan(measure())


def test_budgets_and_accounts_end(tmp_path: Path) -> None:
    """Two answers for 8 epsilon, then 403 with what is left."""
    with running(tmp_path, epsilon=8.5) as up:
        for value in (0.1, 0.2):
            assert post_values(up, [value] * 8).status_code == 200
        assert problem(post_values(up, [0.3] * 8), ProblemKind.BUDGET)["left"] == 0.5
        unknown = add_key(key_table_path(up.ledger), "unknown", None, time.time())
        reply = post(up, authorization=f"Bearer {unknown}")
        problem(reply, ProblemKind.UNKNOWN_CLIENT)
        old = add_key(key_table_path(up.ledger), "old", 1, time.time() - 1e6)
        problem(post(up, authorization=f"Bearer {old}"), ProblemKind.EXPIRED)
    with Ledger.open(up.ledger) as ledger:
        assert ledger.balance("phone").spent == 8 * MICRO
        assert ledger.verify() == []


class Slow:
    """A mechanism that waits until it may answer."""

    name, epsilon, delta, protects = "slow", 4.0, 0.0, "nothing"
    unit: Literal["logits", "probabilities"] = "logits"

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()

    def answer(self, logits: Tensor) -> Tensor:
        self.open.wait(10)
        return logits


def test_a_full_queue_is_told_at_once_and_a_drain_answers_what_waits(tmp_path: Path) -> None:
    """Two under way, two wait, the fifth gets 503; at the end the four have their answers."""
    slow, replies = Slow(), []
    with running(tmp_path, limits=Limits(queue=2, batch=1, rate=1e6), mechanism=slow) as up:
        slow.open.clear()

        def ask(value: float) -> None:
            replies.append(post_values(up, [value] * 8))

        threads = [threading.Thread(target=ask, args=(i / 10,)) for i in range(4)]
        batcher = up.service.batcher
        for count, thread in enumerate(threads, 1):
            thread.start()
            wait_until(lambda n=count: len(batcher._under_way) + len(batcher.waiting) == n)  # type: ignore[misc]
        busy = post_values(up)
        problem(busy, ProblemKind.BUSY)
        assert busy.headers["retry-after"] == "1"
        threading.Timer(0.3, slow.open.set).start()
    for thread in threads:
        thread.join(10)
    assert [reply.status_code for reply in replies] == [200] * 4


def test_readiness_is_shown_by_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a query finds out; a repeat, which is read, does not make the service ready."""
    with running(tmp_path) as up:
        monkeypatch.setattr(service_module, "PROBE_SECONDS", 0.0)
        first = post(up)
        assert httpx.get(f"{up.url}/readyz").status_code == 200
        with monkeypatch.context() as full:
            no_space = OSError(errno.ENOSPC, "No space left on device")
            full.setattr(sqlite_database, "TemporaryFile", Mock(side_effect=no_space))
            problem(httpx.get(f"{up.url}/readyz"), ProblemKind.BUSY)
            assert post(up).json()["values"] == first.json()["values"]
            problem(httpx.get(f"{up.url}/readyz"), ProblemKind.BUSY)
        assert httpx.get(f"{up.url}/readyz").status_code == 200


def test_a_ledger_that_keeps_a_charge_waiting_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of reach or held by another: the balancer is told before that is known."""
    with running(tmp_path) as up:
        monkeypatch.setattr(service_module, "PROBE_SECONDS", 0.0)
        assert httpx.get(f"{up.url}/readyz").status_code == 200
        with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            problem(httpx.get(f"{up.url}/readyz", timeout=20), ProblemKind.BUSY)
            other.execute("ROLLBACK")
        assert httpx.get(f"{up.url}/readyz", timeout=20).status_code == 200


@pytest.mark.parametrize("mechanism", ["gaussian", "label-only"])
def test_every_mechanism_is_served(tmp_path: Path, mechanism: str) -> None:
    """Ten values, a label, the mechanism's delta in the ledger."""
    with running(tmp_path, made_run(**{"privacy.mechanism": mechanism})) as up:
        answer = post(up).json()
        assert len(answer["values"]) == 10 and answer["label"] in range(10)
        probabilities = answer["probabilities"]
        assert sum(probabilities) == pytest.approx(1, abs=1e-5)
        assert answer["label"] == probabilities.index(max(probabilities))
        card = get(up, "/v1/model").json()
        assert card["mechanism"] == mechanism
    with Ledger.open(up.ledger) as ledger:
        assert ledger.balance("phone").delta == card["delta"]


def test_an_id_with_another_message_is_refused(up: Running) -> None:
    """409, nothing answered."""
    ones, zeros = np.ones(8, "<f4").tobytes(), np.zeros(8, "<f4").tobytes()
    assert post(up, ones, idempotency_key="request-once").status_code == 200
    problem(post(up, zeros, idempotency_key="request-once"), ProblemKind.REPLAYED)
