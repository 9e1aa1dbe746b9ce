"""A new model version while the service runs: both are answered, nothing is lost, one budget."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import NamedTuple

import httpx
import numpy as np
import pytest

from clients.service.model_offer import ModelOffer
from clients.service.problems import ProblemKind
from clients.service.service import Reload
from fedcel.errors import RunError
from tests.clients.serving import Running, made_run, make_offer, running, wait_until

NEW = {"seed": 1, "net.features": 6}  # another size of message, too


class Changing(NamedTuple):
    """A service, and what its next reload finds."""

    up: Running
    found: list[ModelOffer | Exception]
    old: ModelOffer
    new: ModelOffer

    def reload(self, what: ModelOffer | Exception, outcome: str) -> None:
        self.found[:] = [what]
        before = self.count(outcome)
        self.up.service.request_reload()
        wait_until(lambda: self.count(outcome) == before + 1)

    def count(self, outcome: str) -> float:
        """Return how many reloads ended so."""
        count: float = self.up.service.metrics.reloads.labels(outcome)._value.get()
        return count

    def ask(self, which: ModelOffer, value: float = 0.5, name: str | None = None) -> httpx.Response:
        content = np.full(which.model.net.features, value, "<f4").tobytes()
        name = name or f"request-{time.monotonic_ns()}"
        return self.up.ask(content, idempotency_key=name, model_version=which.model.version)

    def ask_json(self, which: ModelOffer) -> httpx.Response:
        body = {"request": f"request-{time.monotonic_ns()}", "model": which.model.version}
        return httpx.post(
            f"{self.up.url}/v1/query",
            json=body | {"message": [0.25] * which.model.net.features},
            headers={"authorization": f"Bearer {self.up.key}"},
        )

    def get(self, path: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.up.key}"}
        return httpx.get(f"{self.up.url}{path}", headers=headers)


@pytest.fixture(scope="module")
def offers() -> tuple[ModelOffer, ModelOffer]:
    return make_offer(made_run()), make_offer(made_run(**NEW))


@pytest.fixture
def changing(tmp_path: Path, offers: tuple[ModelOffer, ModelOffer]) -> Iterator[Changing]:
    """A service of the old version, which may be replaced."""
    found: list[ModelOffer | Exception] = []

    def load() -> ModelOffer:
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]

    with running(tmp_path, reload=Reload(load, grace_seconds=3600)) as up:
        yield Changing(up, found, *offers)


def is_refused(reply: httpx.Response, kind: ProblemKind) -> bool:
    return (reply.status_code, reply.json()["type"]) == (kind.status, kind.urn)


def test_both_versions_are_answered_under_load_and_charge_one_budget(changing: Changing) -> None:
    """No question fails from before the change to after it; /v1/model gives the newest."""
    old, new, ended = changing.old, changing.new, Event()
    assert is_refused(changing.ask(new), ProblemKind.MODEL_VERSION)

    def ask_on(which: ModelOffer, first: int) -> list[httpx.Response]:
        replies, number = [], first
        while not (replies and ended.is_set()):
            replies.append(changing.ask(which, number / 1e4))
            number += 1
        return replies

    with ThreadPoolExecutor() as pool:
        before = [pool.submit(ask_on, old, 1000 * place) for place in range(3)]
        time.sleep(0.2)
        changing.reload(new, "served")
        after = pool.submit(ask_on, new, 0)
        time.sleep(0.3)
        ended.set()
        replies = [reply for future in [*before, after] for reply in future.result()]
    assert {reply.status_code for reply in replies} == {200} and after.result()
    fresh = sum(reply.json()["fresh"] for reply in replies)
    assert changing.get("/v1/budget").json()["spent"] == 4 * fresh == 4 * len(replies)
    card = changing.get("/v1/model").json()
    assert (card["model"], card["features"]) == (new.model.version, 6)
    assert changing.get("/v1/encoder").content == new.model.encoder
    assert changing.ask_json(old).status_code == changing.ask_json(new).status_code == 200
    text = changing.get("/metrics").text
    assert "fedcel_served_versions 2.0" in text
    assert f'fedcel_version_queries_total{{model="{old.model.version}"}}' in text


def test_an_old_answer_is_still_free_and_its_id_is_not_used_twice(changing: Changing) -> None:
    """What is stored for a version stays its own."""
    first = changing.ask(changing.old, name="request-one").json()
    changing.reload(changing.new, "served")
    again = changing.ask(changing.old, name="request-one").json()
    assert again["values"] == first["values"] and not again["fresh"]
    reply = changing.ask(changing.new, name="request-one")
    assert is_refused(reply, ProblemKind.REPLAYED)


def test_a_replaced_version_ends_and_may_come_back(changing: Changing) -> None:
    """409 after the end; a reload of the old run serves it again, and keeps the other."""
    old, new = changing.old, changing.new
    changing.reload(new, "served")
    changing.reload(old, "served")
    assert changing.get("/v1/model").json()["model"] == old.model.version
    assert changing.ask(new).status_code == changing.ask(old).status_code == 200
    changing.up.service._loop.call_soon_threadsafe(
        changing.up.service.end_version, new.model.version
    )
    wait_until(lambda: new.model.version not in changing.up.service.versions)
    for reply in (changing.ask(new), changing.ask_json(new)):  # of another length, too
        assert is_refused(reply, ProblemKind.MODEL_VERSION)
    assert changing.ask(old, 0.75).status_code == 200


def test_a_version_that_comes_back_at_its_end_stays(changing: Changing) -> None:
    """It is served again before the worker was told to forget it."""
    old, new, service = changing.old, changing.new, changing.up.service
    changing.reload(new, "served")
    changing.found[:] = [old]

    def end_and_return() -> None:
        service._begin_task(service.reload())
        service.end_version(old.model.version)

    service._loop.call_soon_threadsafe(end_and_return)
    wait_until(lambda: changing.count("served") == 2)
    assert [changing.ask(old, value).status_code for value in (0.1, 0.2, 0.3)] == [200] * 3


def test_the_grace_ends_by_itself(tmp_path: Path, offers: tuple[ModelOffer, ModelOffer]) -> None:
    """409 for a device that still asks the old version, without a charge."""
    old, new = offers[0], make_offer(made_run(seed=2))
    with running(tmp_path, reload=Reload(lambda: new, grace_seconds=0.2)) as up:
        service = Changing(up, [new], old, new)
        service.reload(new, "served")
        assert service.ask(new).status_code == 200
        wait_until(lambda: len(up.service.versions) == 1)
        spent = service.get("/v1/budget").json()["spent"]
        for reply in (service.ask(old), service.ask_json(old)):
            assert is_refused(reply, ProblemKind.MODEL_VERSION)
        assert service.get("/v1/budget").json()["spent"] == spent


def test_a_broken_run_is_refused_and_the_old_one_answers_on(
    changing: Changing, caplog: pytest.LogCaptureFixture
) -> None:
    """One log line with the reason; words of an unexpected error stay out of it."""
    caplog.set_level("INFO", "fedcel.service")
    changing.reload(RunError("the run is damaged"), "refused")
    changing.reload(ValueError("secret words"), "refused")
    reasons = [vars(r)["reason"] for r in caplog.records if r.message == "reload refused"]
    assert reasons[0] == "the run is damaged" and reasons[1].startswith("ValueError at ")
    assert "secret" not in reasons[1]
    assert changing.ask(changing.old).status_code == 200
    assert changing.get("/v1/model").json()["model"] == changing.old.model.version
    assert changing.get("/readyz").text == "ready\n"


def test_a_signal_at_the_end_is_in_the_log(
    changing: Changing, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is read any more; after a failure of the ledger it is."""
    changing.up.service.is_ready = False
    changing.reload(changing.new, "served")
    assert changing.get("/readyz").text == "ready\n"
    changing.up.service.is_ending = True
    changing.up.service.request_reload()
    assert [r.message for r in caplog.records if r.levelname == "WARNING"] == ["reload ignored"]
    changing.up.service.is_ending = False


def test_the_same_model_is_not_replaced_and_keeps_its_price(changing: Changing) -> None:
    """Unchanged; at another epsilon refused, since devices know the version's price."""
    changing.reload(changing.old, "unchanged")
    changing.reload(make_offer(made_run(**{"privacy.epsilon": 2})), "refused")
    assert changing.get("/v1/model").json()["epsilon"] == 4
    assert len(changing.up.service.versions) == 1
