"""One bad message, one bad moment of the disk: what goes on as before."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch

from clients.service import PrivateAnswer, PrivateAnswerer, Query, load_served
from fedcel.privacy.ledger import MICRO, Ledger, Refusal
from tests.clients.serving import Running, ledger_of, made_run, running
from tests.fedcel.privacy.ledger.postgres import PostgresServer

RUN = made_run()


def test_a_message_without_a_finite_answer_costs_nothing_and_its_neighbours_are_answered(
    tmp_path: Path,
) -> None:
    """Known before anything is charged."""
    model = load_served(RUN)
    head = {name: value.clone() for name, value in model.heads.items()}
    head["weight"][:, :, 0] = 1e35
    broken = replace(model, heads=head)
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        ledger.grant("phone", 100 * MICRO)
        answerer = PrivateAnswerer(broken, model.privacy.build(model.classes), ledger)
        rows = torch.zeros(3, 8)
        rows[1, 0] = 1e6
        queries = [
            Query("phone", f"id-{k}", row.numpy().tobytes(), wants_uncertainty=False)
            for k, row in enumerate(rows)
        ]
        queries[2] = queries[2]._replace(message=(rows[2] + 1e-30).numpy().tobytes())
        first, bad, last = answerer.answer(queries)
        assert bad == Refusal("undefined", None)
        assert isinstance(first, PrivateAnswer) and isinstance(last, PrivateAnswer)
        assert ledger.balance("phone").spent == 8 * MICRO


def test_the_service_finds_by_itself_that_its_ledger_can_be_written_again(tmp_path: Path) -> None:
    """A balancer that follows /readyz sends no question which could find out."""
    with running(tmp_path) as up:
        key = {"Authorization": f"Bearer {up.key}"}
        ledger_of(up).db.execute("PRAGMA query_only = ON")
        assert up.ask(bytes(32)).status_code == 503
        assert httpx.get(f"{up.url}/readyz").status_code == 503
        ledger_of(up).db.execute("PRAGMA query_only = OFF")
        assert httpx.get(f"{up.url}/readyz").status_code == 200
        ledger_of(up).close()
        assert httpx.get(f"{up.url}/v1/budget", headers=key).status_code == 503


def test_two_services_share_a_ledger_in_postgresql_which_is_killed(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    """One's answer is the other's, for free; a restart of the server costs neither a charge."""
    url = postgres.make_database()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with (
        running(tmp_path / "one", RUN, 10, ledger=url) as one,
        running(tmp_path / "two", RUN, 2, ledger=url) as two,
    ):
        replies = [ask(up, "a" * 16) for up in (one, two)]
        assert [reply["fresh"] for reply in replies] == [True, False]
        assert replies[0]["values"] == replies[1]["values"]
        postgres.kill()
        postgres.start()
        assert ask(two, "b" * 16, 1.0)["left"] == 4
        assert ask(one, "b" * 16, 1.0)["fresh"] is False
    with Ledger.open(url) as ledger:
        assert ledger.balance("phone").spent == 8 * MICRO and ledger.verify() == []


def ask(up: Running, request: str, value: float = 0.0) -> dict[str, Any]:
    """Return a service's answer."""
    message = np.full(8, value, "<f4").tobytes()
    reply = up.ask(message, seconds=30, idempotency_key=request)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer
