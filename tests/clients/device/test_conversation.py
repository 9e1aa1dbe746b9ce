"""The conversation with a service, without a socket: what is sent again, what is believed."""

import json
from collections.abc import Sequence

import pytest

from clients.device import PrivatePrediction
from clients.device.conversation import (
    HttpReply,
    HttpRequest,
    Uncertainty,
    build_query,
    read_prediction,
    send_with_retries,
)
from clients.service.problems import ProblemError, ProblemKind
from fedcel.errors import ModelVersionError, ServiceError, SpentError

BODY = {
    "unit": "logits",
    "label": 1,
    "values": [0.0, 1.0],
    "probabilities": [0.4, 0.6],
    "fresh": True,
    "left": 3.5,
}


def ask(replies: Sequence[HttpReply | None]) -> tuple[PrivatePrediction, list[HttpRequest]]:
    """Return the answer to a question about two classes, and what was sent."""
    coming, sent = list(replies), []

    def send(request: HttpRequest) -> HttpReply | None:
        sent.append(request)
        return coming.pop(0)

    question = build_query("key", "v" * 32, b"1234", uncertainty=False)
    last_reply = send_with_retries(send, question)
    assert not coming
    return read_prediction(last_reply, 2, 0.5), sent


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of each wait, in which no time passes."""
    seconds: list[float] = []

    monkeypatch.setattr("clients.device.conversation.sleep", seconds.append)
    return seconds


def reply(status: int = 200, body: object = BODY, **headers: str) -> HttpReply:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return HttpReply(status, {k.replace("_", "-"): v for k, v in headers.items()}, content)


def refusal(kind: ProblemKind, **more: float) -> HttpReply:
    """Return what the service itself would say."""
    response = ProblemError(kind, "Why.", **more).to_response()
    return HttpReply(response.status_code, dict(response.headers), bytes(response.body))


def test_the_same_bytes_and_id_are_sent_again(waits: list[float]) -> None:
    """After a lost connection and a full queue; it waits longer each time, as asked at least."""
    lost, busy = None, refusal(ProblemKind.BUSY, retry_after=2.0)
    prediction, sent = ask([lost, busy, reply()])
    assert len(sent) == 3 and len(set(map(repr, sent))) == 1
    assert 0.05 <= waits[0] <= 0.1 and waits[1] == 2.0
    assert (
        prediction.label,
        prediction.remaining_epsilon,
        prediction.leaked_bits,
        prediction.is_fresh,
    ) == (1, 3.5, 0.5, True)
    assert prediction.probabilities.tolist() == pytest.approx([0.4, 0.6])  # as the service says
    assert prediction.values.tolist() == [0, 1]


def test_it_gives_up_after_six_refusals() -> None:
    """And says what was told last."""
    with pytest.raises(ServiceError, match=r"6 attempts: 503: The queue is full"):
        ask([refusal(ProblemKind.BUSY, retry_after=1.0)] * 6)


def test_a_service_has_thirty_seconds_to_start(waits: list[float]) -> None:
    """Waits of five seconds at most; nobody there for longer is an error."""
    ask([*[None] * 9, reply()])
    assert max(waits) <= 5 and 14 <= sum(waits) < 30
    # .1 + .2 + ... + 3.2 and 5 at most, half of that at least: the 11th or 12th wait passes 30
    with pytest.raises(ServiceError, match=r"in 1[23] attempts: no connection"):
        ask([None] * 20)


@pytest.mark.parametrize("kind", [k for k in ProblemKind if k.status not in (429, 503)])
def test_a_refusal_is_final(kind: ProblemKind) -> None:
    """Title and detail reach the asker, once."""
    with pytest.raises(ServiceError) as caught:
        ask([refusal(kind, remaining=0.5)])
    assert kind.title in str(caught.value) and "left: 0.5" in str(caught.value)
    kinds = {
        ProblemKind.BUDGET: SpentError,
        ProblemKind.MODEL_BUDGET: SpentError,
        ProblemKind.MODEL_VERSION: ModelVersionError,
    }
    assert type(caught.value) is kinds.get(kind, ServiceError)


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
        BODY | {"probabilities": [1.0]},
        BODY | {"probabilities": [0.5, 0.6]},
        BODY | {"probabilities": [-0.5, 1.5]},
        BODY | {"probabilities": [float("nan"), 1.0]},
        {k: v for k, v in BODY.items() if k != "probabilities"},
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
        ask([reply(body=body)])


def test_noisy_values_stay_as_they_are() -> None:
    """Also outside of [0, 1], beside the probabilities; uncertainty comes along."""
    body = {**BODY, "unit": "probabilities", "values": [-0.4, 1.2], "entropy": 0.2}
    prediction, _ = ask([reply(body=body | {"information": -0.1})])
    assert prediction.probabilities.tolist() == pytest.approx([0.4, 0.6])
    assert prediction.values.tolist() == [-0.4, 1.2]
    assert prediction.uncertainty == Uncertainty(0.2, -0.1)


def test_ids_are_new_for_every_question() -> None:
    """128 random bits, which the service takes."""
    names = {
        build_query("k", "v", b"", uncertainty=False).headers["Idempotency-Key"] for _ in range(100)
    }
    assert len(names) == 100 and all(len(name) == 32 for name in names)
