"""Conversation of a device with a service: what is asked, sent again and believed."""

import math
import secrets
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from time import sleep
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

import torch
from jaxtyping import Float
from pydantic import BaseModel, ValidationError
from torch import Tensor

from clients.service_messages import LOOPBACK_HOSTS, QUERY_PATH, Answer, ProblemBody
from fedcel.errors import ModelVersionError, ServiceError, SpentError
from fedcel.short_repr import show_shapes

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

Content = TypeVar("Content", bound=BaseModel)


class HttpRequest(NamedTuple):
    """Request to make."""

    method: str
    path: str
    headers: dict[str, str]
    content: bytes = b""
    limit: int = MAX_REPLY_BYTES
    """Bytes of reply that are read, at most."""


class HttpReply(NamedTuple):
    """Reply to a request."""

    status: int
    headers: Mapping[str, str]
    body: bytes


Send = Callable[[HttpRequest], HttpReply | None]
"""Sends a request; None where no reply came."""


class Uncertainty(NamedTuple):
    """Perturbed, in nats; the noise may take them out of [0, log C]."""

    entropy: float
    information: float


@show_shapes
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


def send_with_retries(send: Send, request: HttpRequest) -> HttpReply:
    """Return the reply, after waiting and sending the same again where that may help.

    ServiceError when it says no, is too busy six times, or cannot be reached for 30 seconds:
    SpentError where it says no because a budget is spent, ModelVersionError where another model
    version is served.
    """
    attempts = 0
    refusals = 0
    paused = 0.0
    while True:
        reply = send(request)
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
        sleep(seconds)


def choose_pause(attempt: int, reply: HttpReply | None) -> float:
    """Return the seconds to wait: doubled each time, partly random, at least as asked."""
    header = reply.headers.get("retry-after", "0") if reply else "0"
    least = float(header) if header.isdigit() else 0.0
    longest = FIRST_PAUSE * 2.0**attempt
    share = secrets.randbelow(1000) / 1000  # so that many devices do not come back at once
    return min(LONGEST_PAUSE, max(least, longest * (0.5 + share / 2)))


def describe_refusal(reply: HttpReply) -> ServiceError:
    """Return a refusal as an error."""
    try:
        problem = ProblemBody.model_validate_json(reply.body)
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


def build_query(key: str, version: str, message: bytes, *, uncertainty: bool) -> HttpRequest:
    """Return the request that asks; one id for all attempts, so that it is paid once."""
    headers = {
        "Authorization": f"Bearer {key}",
        "Content-Type": "application/octet-stream",
        "Idempotency-Key": secrets.token_hex(16),
        "Model-Version": version,
    }
    path = f"{QUERY_PATH}?uncertainty={str(uncertainty).lower()}"
    return HttpRequest("POST", path, headers, message)


def read_prediction(reply: HttpReply, classes: int, leaked_bits: float) -> PrivatePrediction:
    """Return the answer to a query; ServiceError where it cannot be one."""
    answer = parse_reply(Answer, reply)
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
    )


def check_url(url: str) -> str:
    """Return a service's address; ServiceError if its port is wrong, or it would not encrypt."""
    parts = urlsplit(url)
    try:
        parts.port  # noqa: B018  # read for what it refuses
    except ValueError as error:
        raise ServiceError(f"url is {url!r}: {error}") from None
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK_HOSTS):
        return url
    raise ServiceError(f"url is {url!r}, must begin with https:// (http:// only for this machine)")


def build_tls_context(verify: str | Path | bool) -> ssl.SSLContext:
    """Return the trusted authorities: the system's, or a file's; ServiceError on False."""
    if verify is False:
        raise ServiceError("verify is False: anybody could answer; pass the authority's file")
    if verify is not True and not Path(verify).is_file():
        raise ServiceError(f"{verify} is no file; give the PEM file of the service's authority")
    context = ssl.create_default_context(cafile=None if verify is True else str(verify))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
