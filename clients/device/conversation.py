"""Conversation of a device with a service: what is asked, sent again, believed and renewed.

It is written once, for an event loop. `SplitClient` runs one in a thread.
"""

import asyncio
import math
import secrets
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

import httpx
import torch
from jaxtyping import Float
from pydantic import BaseModel, ValidationError
from torch import Tensor

from clients.device.device import Device, DeviceBuilder, PreparedMessage
from clients.device.encoder import MAX_ENCODER_BYTES, read_encoder
from clients.device.sent_messages import GroupCharge
from clients.service_messages import (
    LOOPBACK_HOSTS,
    QUERY_PATH,
    Answer,
    ExpectedCard,
    ModelCard,
    ProblemBody,
)
from fedcel.errors import LeakError, ModelVersionError, ServiceError, SpentError
from fedcel.short_repr import show_shapes

ATTEMPT_TIMEOUT = httpx.Timeout(30.0, connect=5.0)  # seconds
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


Send = Callable[[HttpRequest], Awaitable[HttpReply | None]]
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
    group: GroupCharge | None = None
    """Group of nearly equal images that the message was charged to."""


class ServiceClient:
    """State of a service's client, and its side of the conversation; arguments of `SplitClient`.

    An encoder is fetched and measured before an image is encoded with it, the first one and those
    that replace it.
    """

    device: Device
    """Makes messages for the model version that is asked; its encoder passed the measurement."""

    def __init__(
        self,
        url: str,
        key: str,
        builder: DeviceBuilder,
        verify: str | Path | bool = True,
        *,
        renew_encoder: bool = False,
    ) -> None:
        self._key = key
        self._builder = builder
        self._renews_encoder = renew_encoder
        self._turns = asyncio.Lock()
        self._http = httpx.AsyncClient(
            base_url=check_url(url), verify=build_tls_context(verify), timeout=ATTEMPT_TIMEOUT
        )
        self._ended: Device | None = None
        """Version that the service refuses and nothing may replace: no message is sent in vain."""
        self._refusals: dict[tuple[str, float, float], str] = {}
        """Why encoders were refused: a leak near the limit must not pass at the tenth try."""

    @property
    def card(self) -> ModelCard:
        """Return the card of the model version that is asked."""
        return self.device.card

    @property
    def claimed_answers(self) -> ExpectedCard | None:
        """Accuracy of the answers as the service claims it; None where it claims nothing.

        Nothing on the device checks it. The leak, in `device.leak`, is measured here.
        """
        return self.card.expected

    async def _connect(self) -> None:
        card = await self._read(ModelCard, "/v1/model")
        self.device = await self._measure_version(card, None)

    async def _ask(
        self, image: Float[Tensor, "C H W"], uncertainty: bool, group: str | None
    ) -> PrivatePrediction:
        device = self.device  # another question may renew it meanwhile
        if device is self._ended:
            device = await self._renew(device, may_be_back=True)
        # A thread encodes, so that other questions go on meanwhile.
        message = await asyncio.to_thread(device.prepare, image, group)
        try:
            return await self._query(device, message, uncertainty)
        except ModelVersionError:
            if not self._renews_encoder:
                raise
        device = await self._renew(device)
        message = await asyncio.to_thread(device.prepare, image, group, encoded_before=message)
        return await self._query(device, message, uncertainty)

    async def _query(
        self, device: Device, message: PreparedMessage, uncertainty: bool
    ) -> PrivatePrediction:
        card, leaked_bits = device.card, device.leaked_bits
        request = build_query(self._key, card.model, message.content, uncertainty=uncertainty)
        reply = await send_with_retries(self._send, request)
        return read_prediction(reply, card.classes, leaked_bits, message.charge)

    async def _renew(self, refused: Device, *, may_be_back: bool = False) -> Device:
        """Return a device of the version served now, of the same images, classes and price.

        The first of many questions fetches and measures it. ServiceError where it is something
        else, LeakError where its encoder leaks too much, now or before.
        """
        async with self._turns:
            if self.device is not refused:
                return self.device
            self._ended = refused
            card = await self._read(ModelCard, "/v1/model")
            if not (may_be_back and card.model == refused.card.model):
                check_successor(refused.card, card)
                if reason := self._refusals.get(identify_encoder(card)):
                    raise LeakError(reason)
                self.device = await self._measure_version(card, refused)
            self._ended = None
            return self.device

    async def _measure_version(self, card: ModelCard, replaced: Device | None) -> Device:
        """Return a device of a card's model."""
        size = card.encoder.bytes
        if size > MAX_ENCODER_BYTES:
            raise ServiceError(f"the encoder has {size} bytes, at most {MAX_ENCODER_BYTES}")
        data = (await self._fetch("/v1/encoder", size)).body
        return await asyncio.to_thread(self._measure, card, data, replaced)

    def _measure(self, card: ModelCard, data: bytes, replaced: Device | None) -> Device:
        """Build and measure an encoder; LeakError where it leaks too much.

        The device takes over the key and the record of what was sent, so that limits of all
        messages hold across versions.
        """
        net = read_encoder(card, data, self._builder.encoder)
        try:
            device = self._builder.build_device(card, net)
        except LeakError as error:
            self._refusals[identify_encoder(card)] = f"model {card.model}: {error}"
            raise
        if replaced is not None:
            device = replace(device, key=replaced.key, sent=replaced.sent)
        return device

    async def _read(self, kind: type[Content], path: str) -> Content:
        return parse_reply(kind, await self._fetch(path))

    async def _fetch(self, path: str, limit: int = MAX_REPLY_BYTES) -> HttpReply:
        request = HttpRequest("GET", path, {"Authorization": f"Bearer {self._key}"}, limit=limit)
        return await send_with_retries(self._send, request)

    async def _send(self, request: HttpRequest) -> HttpReply | None:
        method, path, headers, content, limit = request
        body = bytearray()
        try:
            async with self._http.stream(method, path, headers=headers, content=content) as reply:
                async for part in reply.aiter_bytes():
                    body += part
                    if len(body) > limit:
                        raise ServiceError(f"the reply is longer than {limit} bytes")
                return HttpReply(reply.status_code, reply.headers, bytes(body))
        except httpx.TransportError as error:
            if "certificate" in str(error).lower():  # to try again would not help
                raise ServiceError(
                    f"the service's certificate is not trusted: {error}; pass its authority as "
                    "`verify`"
                ) from None
            return None


async def send_with_retries(send: Send, request: HttpRequest) -> HttpReply:
    """Return the reply, after waiting and sending the same again where that may help.

    ServiceError when it says no, is too busy six times, or cannot be reached for 30 seconds:
    SpentError where it says no because a budget is spent, ModelVersionError where another model
    version is served.
    """
    attempts = 0
    refusals = 0
    paused = 0.0
    while True:
        reply = await send(request)
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
        await asyncio.sleep(seconds)


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


def read_prediction(
    reply: HttpReply, classes: int, leaked_bits: float, charge: GroupCharge | None = None
) -> PrivatePrediction:
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
        group=charge,
    )


def identify_encoder(card: ModelCard) -> tuple[str, float, float]:
    """Return what a leak depends on: an encoder's digest and its cut."""
    return card.encoder.sha256, card.sigma, card.dropout


def check_successor(current: ModelCard, newer: ModelCard) -> None:
    """Refuse a version that the client's owner has to agree to: ServiceError."""
    if newer.model == current.model:
        raise ServiceError(
            f"the service refuses model {current.model}, but its /v1/model states it; several "
            "services behind one address may differ for a while, ask again later"
        )
    if (newer.shape, newer.classes) != (current.shape, current.classes):
        raise ServiceError(
            f"model {newer.model} is served now, with images {newer.shape} and {newer.classes} "
            f"classes, so far {current.shape} and {current.classes}; connect anew to ask it"
        )
    prices = [(card.price.answer, card.price.uncertainty, card.delta) for card in (newer, current)]
    if any(price > earlier for price, earlier in zip(*prices, strict=True)):
        raise ServiceError(
            f"model {newer.model} is served now, an answer costs epsilon {newer.price.answer:g} "
            f"and {newer.price.uncertainty:g} for its uncertainty at delta {newer.delta:g}, so far "
            f"{current.price.answer:g} and {current.price.uncertainty:g} at {current.delta:g}; "
            "connect anew to pay it"
        )


def check_url(url: str) -> str:
    """Return a service's address; ServiceError where key and messages would travel in clear."""
    parts = urlsplit(url)
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
