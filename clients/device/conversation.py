"""What a device says to a service and how it takes the replies; no socket in here.

Both clients, in a thread and in an event loop, carry on the same conversations.
"""

import math
import secrets
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Float
from pydantic import BaseModel, ValidationError
from torch import Tensor, nn

from clients import service_messages
from clients.device.encoder import MAX_ENCODER_BYTES, read_encoder
from clients.device.message_groups import GroupCharge
from fedcel.errors import ModelVersionError, ServiceError, SpentError
from fedcel.nets import SplitNet
from fedcel.short_repr import summarise_record

MAX_REPLY_BYTES = 2**20  # of any reply but an encoder
MAX_REFUSALS = 6
FIRST_PAUSE = 0.1  # seconds
LONGEST_PAUSE = 5.0  # seconds
MAX_CONNECT_SECONDS = 30.0  # of pauses for a service that does not listen yet
RETRIED_STATUSES = (429, 503)
ERROR_OF_PROBLEM: dict[str, type[ServiceError]] = {
    "urn:fedcel:problem:budget": SpentError,
    "urn:fedcel:problem:model-budget": SpentError,
    "urn:fedcel:problem:model-version": ModelVersionError,
}
MAX_ROUNDING = 1e-3  # of the sum of an answer's probabilities
VERSION_HINT = "; is this a fedcel service of this version?"

Result = TypeVar("Result")
Content = TypeVar("Content", bound=BaseModel)


class HttpRequest(NamedTuple):
    """A request to make; at most `limit` bytes of reply are read."""

    method: str
    path: str
    headers: dict[str, str]
    content: bytes = b""
    limit: int = MAX_REPLY_BYTES


class Pause(NamedTuple):
    """Time to let pass."""

    seconds: float


class HttpReply(NamedTuple):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes


Conversation = Generator[HttpRequest | Pause, HttpReply | None, Result]
"""It yields what to do and is sent the reply, None where no reply came."""


class Uncertainty(NamedTuple):
    """Perturbed, in nats; the noise may take them out of [0, log C]."""

    entropy: float
    information: float


class PrivatePrediction(NamedTuple):
    """A private answer about one image."""

    label: int
    probabilities: Float[Tensor, " C"]
    """Each class's probability given the perturbed values: they come true as often as they say,
    for images like the service's validation images, of classes that are equally frequent."""
    values: Float[Tensor, " C"]
    """The perturbed values as the mechanism gave them."""
    uncertainty: Uncertainty | None
    is_fresh: bool
    """False where the same message was answered before, and nothing was paid."""
    remaining_epsilon: float
    """Epsilon that the client may still spend."""
    leaked_bits: float
    """Bits beyond the label that all messages of this device may have told the service."""
    group: GroupCharge | None = None
    """What was assumed about nearly equal images, and what they may have told together."""

    def __repr__(self) -> str:
        """Return a line; tensors by their shapes."""
        return summarise_record(self)


def send_with_retries(request: HttpRequest) -> Conversation[HttpReply]:
    """Return the reply, after waiting and sending the same again where that may help.

    ServiceError when it says no, is too busy six times, or cannot be reached for 30 seconds:
    SpentError where it says no because a budget is spent, ModelVersionError where another model
    version is served.
    """
    attempts = 0
    refusals = 0
    paused = 0.0
    while True:
        reply = yield request
        if reply and reply.status == 200:
            return reply
        if reply and reply.status not in RETRIED_STATUSES:
            raise describe_refusal(reply)
        attempts += 1
        refusals += reply is not None
        if refusals == MAX_REFUSALS or (reply is None and paused >= MAX_CONNECT_SECONDS):
            reason = describe_refusal(reply) if reply else "no connection"
            raise ServiceError(f"no answer in {attempts} attempts: {reason}; try again later")
        seconds = choose_pause(attempts - 1, reply)
        paused += seconds
        yield Pause(seconds)


def choose_pause(attempt: int, reply: HttpReply | None) -> float:
    """Return the seconds to wait: doubled each time, partly random, at least as asked."""
    header = reply.headers.get("retry-after", "0") if reply else "0"
    least = float(header) if header.isdigit() else 0.0
    longest = FIRST_PAUSE * 2.0**attempt
    share = secrets.randbelow(1000) / 1000  # so that many devices do not come back at once
    return min(LONGEST_PAUSE, max(least, longest * (0.5 + share / 2)))


def describe_refusal(reply: HttpReply) -> ServiceError:
    """Return what a refusal says."""
    try:
        problem = service_messages.ProblemBody.model_validate_json(reply.body)
    except ValidationError:
        return ServiceError(f"the service answered {reply.status}")
    remaining = "" if problem.remaining is None else f" (epsilon left: {problem.remaining:g})"
    kind = ERROR_OF_PROBLEM.get(problem.type, ServiceError)
    return kind(f"{problem.status}: {problem.title} {problem.detail}{remaining}")


def parse_reply(kind: type[Content], reply: HttpReply) -> Content:
    """Return a reply's content; ServiceError where it is not what the service promises."""
    try:
        return kind.model_validate_json(reply.body)
    except ValidationError as error:
        raise ServiceError(
            f"the reply is no {kind.__name__}: {error.error_count()} problems{VERSION_HINT}"
        ) from None


def request_card(key: str) -> Conversation[service_messages.ModelCard]:
    """Return the served model's card."""
    request = HttpRequest("GET", "/v1/model", {"Authorization": f"Bearer {key}"})
    return parse_reply(service_messages.ModelCard, (yield from send_with_retries(request)))


def request_encoder(
    key: str,
    card: service_messages.ModelCard,
    own_encoder: nn.Module | None,
    encoder_file: str | Path | None = None,
) -> Conversation[SplitNet]:
    """Return the device's half of a card's model, of a file where there is one."""
    if encoder_file is not None:
        return read_encoder(card, Path(encoder_file).read_bytes(), own_encoder)
    size = card.encoder.bytes
    if size > MAX_ENCODER_BYTES:
        raise ServiceError(f"the encoder has {size} bytes, at most {MAX_ENCODER_BYTES}")
    headers = {"Authorization": f"Bearer {key}"}
    reply = yield from send_with_retries(HttpRequest("GET", "/v1/encoder", headers, limit=size))
    return read_encoder(card, reply.body, own_encoder)


def request_budget(key: str) -> Conversation[service_messages.Budget]:
    """Return the client's account."""
    request = HttpRequest("GET", "/v1/budget", {"Authorization": f"Bearer {key}"})
    return parse_reply(service_messages.Budget, (yield from send_with_retries(request)))


def build_query(key: str, version: str, message: bytes, *, uncertainty: bool) -> HttpRequest:
    """Return the request that asks; one id for all attempts, so that it is paid once."""
    headers = {
        "Authorization": f"Bearer {key}",
        "Content-Type": "application/octet-stream",
        "Idempotency-Key": secrets.token_hex(16),
        "Model-Version": version,
    }
    path = f"/v1/query?uncertainty={str(uncertainty).lower()}"
    return HttpRequest("POST", path, headers, message)


def request_prediction(
    request: HttpRequest, classes: int, leaked_bits: float, charge: GroupCharge | None = None
) -> Conversation[PrivatePrediction]:
    """Return the answer to a query."""
    answer = parse_reply(service_messages.Answer, (yield from send_with_retries(request)))
    counts = {len(answer.values), len(answer.probabilities)}
    if counts != {classes} or not 0 <= answer.label < classes:
        raise ServiceError(
            f"the answer has {len(answer.values)} values, {len(answer.probabilities)} "
            f"probabilities and label {answer.label}, must be {classes} of both and a label from 0 "
            f"to {classes - 1}{VERSION_HINT}"
        )
    total = math.fsum(answer.probabilities)
    if abs(total - 1) > MAX_ROUNDING:
        raise ServiceError(
            f"the answer's probabilities add up to {total:g}, must be 1{VERSION_HINT}"
        )
    uncertainty = None
    if answer.entropy is not None and answer.information is not None:
        uncertainty = Uncertainty(answer.entropy, answer.information)
    return PrivatePrediction(
        label=answer.label,
        probabilities=torch.tensor(answer.probabilities, dtype=torch.float64) / total,
        values=torch.tensor(answer.values, dtype=torch.float64),
        uncertainty=uncertainty,
        is_fresh=answer.fresh,
        remaining_epsilon=answer.remaining,
        leaked_bits=leaked_bits,
        group=charge,
    )
