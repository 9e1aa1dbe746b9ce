"""What a device says to a service and how it takes the replies; no socket in here."""

import math
import secrets
from collections.abc import Generator, Mapping
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Float
from pydantic import BaseModel, ValidationError
from torch import Tensor, nn

from clients.device.encoder import MOST_BYTES, read_encoder
from clients.service import schema
from fedcel.errors import ServiceError, SpentError
from fedcel.nets import SplitNet
from fedcel.privacy import project_simplex

SMALL = 2**20  # bytes of any reply but an encoder
ATTEMPTS = 6  # that may be refused
FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0  # seconds
PATIENCE = 30.0  # seconds of waiting for a service that does not listen yet
AGAIN = (429, 503)
SPENT = ("urn:fedcel:problem:budget", "urn:fedcel:problem:model-budget")
REMEDY = "; is this a fedcel service of this version?"

Found = TypeVar("Found")
Card = TypeVar("Card", bound=BaseModel)


class Send(NamedTuple):
    """A request to make; at most `limit` bytes of reply are read."""

    method: str
    path: str
    headers: dict[str, str]
    content: bytes = b""
    limit: int = SMALL


class Wait(NamedTuple):
    """Time to let pass."""

    seconds: float


class Reply(NamedTuple):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes


Flow = Generator[Send | Wait, Reply | None, Found]
"""A conversation: it yields what to do and is sent the reply, None where no reply came."""


class Uncertainty(NamedTuple):
    """Perturbed, in nats; the noise may take them out of [0, log C]."""

    entropy: float
    information: float


class Answer(NamedTuple):
    """A private answer about one image."""

    label: int
    probabilities: Float[Tensor, " C"]
    """Made of the perturbed values: softmax of logits, probabilities projected to sum 1."""
    values: Float[Tensor, " C"]
    """As the mechanism gave them."""
    uncertainty: Uncertainty | None
    fresh: bool
    """False where the same message was answered before, and nothing was paid."""
    left: float
    """Epsilon that the client has left."""
    leaked: float
    """Bits beyond the label that all messages of this device may have told the service."""


def send_with_retries(send: Send) -> Flow[Reply]:
    """Return the reply, after waiting and sending the same again where that may help.

    ServiceError when it says no, is too busy six times, or cannot be reached for 30 seconds:
    SpentError where it says no because a budget is spent.
    """
    attempts, refusals, waited = 0, 0, 0.0
    while True:
        reply = yield send
        if reply and reply.status == 200:
            return reply
        if reply and reply.status not in AGAIN:
            raise describe_refusal(reply)
        attempts += 1
        refusals += reply is not None
        if refusals == ATTEMPTS or (reply is None and waited >= PATIENCE):
            reason = describe_refusal(reply) if reply else "no connection"
            raise ServiceError(f"no answer in {attempts} attempts: {reason}; try again later")
        seconds = retry_delay(attempts - 1, reply)
        waited += seconds
        yield Wait(seconds)


def retry_delay(attempt: int, reply: Reply | None) -> float:
    """Return the seconds to wait: doubled each time, partly random, at least as asked."""
    asked = reply.headers.get("retry-after", "0") if reply else "0"
    least = float(asked) if asked.isdigit() else 0.0
    longest = FIRST_WAIT * 2.0**attempt
    chance = secrets.randbelow(1000) / 1000  # so that many devices do not come back at once
    return min(LONGEST_WAIT, max(least, longest * (0.5 + chance / 2)))


def describe_refusal(reply: Reply) -> ServiceError:
    """Return what a refusal says."""
    try:
        found = schema.ProblemBody.model_validate_json(reply.body)
    except ValidationError:
        return ServiceError(f"the service answered {reply.status}")
    left = "" if found.left is None else f" (epsilon left: {found.left:g})"
    kind = SpentError if found.type in SPENT else ServiceError
    return kind(f"{found.status}: {found.title} {found.detail}{left}")


def parse_reply(kind: type[Card], reply: Reply) -> Card:
    """Return a reply's content; ServiceError where it is not what the protocol says."""
    try:
        return kind.model_validate_json(reply.body)
    except ValidationError as error:
        raise ServiceError(
            f"the reply is no {kind.__name__}: {error.error_count()} problems{REMEDY}"
        ) from None


def request_model(key: str, encoder: nn.Module | None) -> Flow[tuple[schema.ModelCard, SplitNet]]:
    """Return the served model's card and the device's half of it."""
    headers = {"Authorization": f"Bearer {key}"}
    card = parse_reply(
        schema.ModelCard, (yield from send_with_retries(Send("GET", "/v1/model", headers)))
    )
    if card.encoder.bytes > MOST_BYTES:
        raise ServiceError(f"the encoder has {card.encoder.bytes} bytes, at most {MOST_BYTES}")
    wanted = Send("GET", "/v1/encoder", headers, limit=card.encoder.bytes)
    data = (yield from send_with_retries(wanted)).body
    return card, read_encoder(card, data, encoder)


def request_balance(key: str) -> Flow[schema.Budget]:
    """Return the client's account."""
    send = Send("GET", "/v1/budget", {"Authorization": f"Bearer {key}"})
    return parse_reply(schema.Budget, (yield from send_with_retries(send)))


def build_query(key: str, version: str, message: bytes, uncertainty: bool) -> Send:
    """Return the request that asks; one id for all attempts, so that it is paid once."""
    headers = {
        "Authorization": f"Bearer {key}",
        "Content-Type": "application/octet-stream",
        "Idempotency-Key": secrets.token_hex(16),
        "Model-Version": version,
    }
    path = f"/v1/query?uncertainty={str(uncertainty).lower()}"
    return Send("POST", path, headers, message)


def request_answer(send: Send, classes: int, leaked: float) -> Flow[Answer]:
    """Return the answer to a question."""
    found = parse_reply(schema.Answer, (yield from send_with_retries(send)))
    check_answer(found, classes)
    values = torch.tensor(found.values, dtype=torch.float64)
    doubt = None
    if found.entropy is not None and found.information is not None:
        doubt = Uncertainty(found.entropy, found.information)
    probabilities = (
        project_simplex(values[None], 1.0)[0]
        if found.unit == "probabilities"
        else values.softmax(0)
    )
    return Answer(found.label, probabilities, values, doubt, found.fresh, found.left, leaked)


def check_answer(found: schema.Answer, classes: int) -> None:
    """Refuse an answer that no service of this version gives: ServiceError."""
    if len(found.values) != classes or not all(map(math.isfinite, found.values)):
        raise ServiceError(
            f"the answer has {len(found.values)} values, must be {classes} finite ones{REMEDY}"
        )
    if not 0 <= found.label < classes:
        raise ServiceError(
            f"the answer's label is {found.label}, must be from 0 to {classes - 1}{REMEDY}"
        )
    for name in ("entropy", "information", "left"):
        value = getattr(found, name)
        if value is not None and not math.isfinite(value):
            raise ServiceError(f"the answer's {name} is {value}, must be finite{REMEDY}")
