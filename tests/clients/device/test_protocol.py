"""The conversation with a service, without a socket: what is sent again, what is believed."""

import json
from collections.abc import Sequence
from typing import TypeVar

import pytest
import torch

from clients.device import protocol
from clients.device.protocol import Flow, Reply, Send, Wait
from clients.service.problems import Kinds, ProblemError
from fedcel.errors import ServiceError, SpentError

Found = TypeVar("Found")
BODY = {"unit": "logits", "label": 1, "values": [0.0, 1.0], "fresh": True, "left": 3.5}


def spoken(flow: Flow[Found], replies: Sequence[Reply | None]) -> tuple[Found, list[Send | Wait]]:
    """Return what a conversation ends with, and all that it did."""
    coming, said = list(replies), []
    step = next(flow)
    try:
        while True:
            said.append(step)
            step = flow.send(None if isinstance(step, Wait) else coming.pop(0))
    except StopIteration as end:
        assert not coming
        return end.value, said


def reply(status: int = 200, body: object = BODY, **headers: str) -> Reply:
    """Return a reply in JSON."""
    return Reply(status, {k.replace("_", "-"): v for k, v in headers.items()}, dumped(body))


def dumped(body: object) -> bytes:
    """Return JSON, or bytes as they are."""
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def refusal(kind: Kinds, **more: float) -> Reply:
    """Return what the service itself would say."""
    response = ProblemError(kind, "Why.", **more).response()
    return Reply(response.status_code, dict(response.headers), bytes(response.body))


def ask() -> Flow[protocol.Answer]:
    """Return a question that is answered with two classes."""
    return protocol.request_answer(protocol.build_query("key", "v" * 32, b"1234", False), 2, 0.5)


def test_the_same_bytes_and_id_are_sent_again() -> None:
    """After a lost connection and a full queue; it waits longer each time, as asked at least."""
    lost, busy = None, refusal(Kinds.BUSY, retry=2.0)
    found, said = spoken(ask(), [lost, busy, reply()])
    sends = [step for step in said if isinstance(step, Send)]
    waits = [step.seconds for step in said if isinstance(step, Wait)]
    assert len(sends) == 3 and len(set(map(repr, sends))) == 1
    assert 0.05 <= waits[0] <= 0.1 and waits[1] == 2.0
    assert (found.label, found.left, found.leaked, found.fresh) == (1, 3.5, 0.5, True)
    torch.testing.assert_close(found.probabilities, torch.tensor([0.0, 1.0]).double().softmax(0))


def test_it_gives_up_after_six_refusals() -> None:
    """And says what was told last."""
    with pytest.raises(ServiceError, match=r"6 attempts: 503: The queue is full"):
        spoken(ask(), [refusal(Kinds.BUSY, retry=1.0)] * 6)


def test_a_service_has_thirty_seconds_to_start() -> None:
    """Waits of five seconds at most; nobody there for longer is an error."""
    _, said = spoken(ask(), [*[None] * 9, reply()])
    waits = [step.seconds for step in said if isinstance(step, Wait)]
    assert max(waits) <= 5 and 14 <= sum(waits) < 30
    # .1 + .2 + ... + 3.2 and 5 at most, half of that at least: the 11th or 12th wait passes 30
    with pytest.raises(ServiceError, match=r"in 1[23] attempts: no connection"):
        spoken(ask(), [None] * 20)


@pytest.mark.parametrize("kind", [k for k in Kinds if k.value.status not in (429, 503)])
def test_a_refusal_is_final(kind: Kinds) -> None:
    """Title and detail reach the asker, once."""
    with pytest.raises(ServiceError) as caught:
        spoken(ask(), [refusal(kind, left=0.5)])
    assert kind.value.title in str(caught.value) and "left: 0.5" in str(caught.value)
    spent = kind in (Kinds.BUDGET, Kinds.MODEL_BUDGET)
    assert type(caught.value) is (SpentError if spent else ServiceError)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        [],
        BODY | {"values": [0.0]},
        BODY | {"values": [0.0, float("inf")]},
        BODY | {"values": [0.0, float("nan")]},
        BODY | {"values": None},
        BODY | {"unit": "cats"},
        BODY | {"extra": 1},
        BODY | {"label": -1},
        BODY | {"label": 2},
        BODY | {"left": float("nan")},
        BODY | {"left": float("inf")},
        BODY | {"entropy": float("nan"), "information": 0.1},
        BODY | {"entropy": 0.1, "information": -float("inf")},
        {k: v for k, v in BODY.items() if k != "left"},
    ],
)
def test_what_is_no_answer_is_not_believed(body: object) -> None:
    """Another shape, undefined values, another service."""
    with pytest.raises(ServiceError, match="(is no Answer|must be).*; is this a fedcel service"):
        spoken(ask(), [reply(body=body)])


def test_noisy_probabilities_are_projected() -> None:
    """Onto the simplex: none below 0, sum 1; uncertainty comes along."""
    body = {**BODY, "unit": "probabilities", "values": [-0.4, 1.2], "entropy": 0.2}
    found, _ = spoken(ask(), [reply(body=body | {"information": -0.1})])
    assert found.probabilities.tolist() == [0.0, 1.0]
    assert found.values.tolist() == [-0.4, 1.2]
    assert found.uncertainty == protocol.Uncertainty(0.2, -0.1)


def test_ids_are_new_for_every_question() -> None:
    """128 random bits, which the service takes."""
    names = {
        protocol.build_query("k", "v", b"", False).headers["Idempotency-Key"] for _ in range(100)
    }
    assert len(names) == 100 and all(len(name) == 32 for name in names)
