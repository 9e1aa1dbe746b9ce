"""Ask a service about images that stay here: encode, add noise, ask, count what leaked."""

import asyncio
import secrets
import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self, TypeVar, final, runtime_checkable
from urllib.parse import urlsplit

import httpx
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clients.device import protocol
from clients.device.device import Device, Sent, describe_law, load_device_key
from clients.device.protocol import Answer, Flow, Reply, Send, Wait
from clients.leak_guard import LeakGuard
from clients.service.schema import Budget, ModelCard
from fedcel.errors import ServiceError
from fedcel.nets import SplitNet

TIMEOUT = httpx.Timeout(30.0, connect=5.0)  # seconds for one attempt
LOOPBACK = ("localhost", "127.0.0.1", "::1")

Found = TypeVar("Found")


@runtime_checkable
class Holder(Protocol):
    """Who makes a device of what a service sent."""

    @property
    def encoder(self) -> nn.Module | None:
        """Return an encoder of the holder's own making, into which the received values go."""
        ...

    def device(self, card: ModelCard, net: SplitNet) -> Device:
        """Return a device with this net, or raise LeakError."""
        ...


@final
@dataclass(frozen=True)
class OwnImages:
    """What a device holder brings: images to measure with, limits, where to keep the secret.

    `message_limit` bits beyond the label for one message, `total_limit` for all distinct ones;
    `state` a folder for the device's key and the marks of what was sent. Without it both last as
    long as the process, and the same image is another message after a restart.
    """

    images: Float[Tensor, "M C H W"]
    labels: Int[Tensor, " M"]
    message_limit: float = 1.0
    total_limit: float = 1000.0
    state: Path | None = None
    encoder: nn.Module | None = None

    def device(self, card: ModelCard, net: SplitNet) -> Device:
        """Return a device with the measured net; LeakError where it leaks more than allowed."""
        noise = torch.Generator().manual_seed(secrets.randbits(63))
        leak = LeakGuard(self.message_limit).check(net, self.images, self.labels, noise)
        key = load_device_key(self.state and self.state / "device.key")
        sent = Sent(self.state and self.state / "sent.txt")
        shape, limit, law = tuple(card.shape), self.total_limit, describe_law(card, net)
        return Device(net, shape, law, card.largest, leak, limit, key, sent)


class SplitClient:
    """Asks a split-inference service; the image itself never leaves.

    Use it as a context manager, or close it. `verify` is the file of the authority that signed the
    service's certificate, or True for the system's own.
    """

    def __init__(self, url: str, key: str, own: Holder, verify: Path | bool = True) -> None:
        """Fetch the model's encoder and measure it; ServiceError, LeakError say why not."""
        self._key = key
        self._http = httpx.Client(
            base_url=check_address(url), verify=choose_authorities(verify), timeout=TIMEOUT
        )
        try:
            self.card, net = self._drive(protocol.request_model(key, own.encoder))
            self.device = own.device(self.card, net)
        except BaseException:
            self._http.close()
            raise

    def ask(self, image: Float[Tensor, "C H W"], uncertainty: bool = False) -> Answer:
        """Return the private answer about an image in [0, 1].

        LeakLimitError before anything is sent, ServiceError where the service says no.
        """
        message = self.device.message(image)
        send = protocol.build_query(self._key, self.card.model, message, uncertainty)
        return self._drive(protocol.request_answer(send, self.card.classes, self.device.leaked))

    def budget(self) -> Budget:
        """Return the client's account in epsilon."""
        return self._drive(protocol.request_balance(self._key))

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def __enter__(self) -> Self:
        """Return this client."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self.close()

    def _drive(self, flow: Flow[Found]) -> Found:
        try:
            step = next(flow)
            while True:
                if isinstance(step, Wait):
                    time.sleep(step.seconds)
                    step = flow.send(None)
                else:
                    step = flow.send(self._send(step))
        except StopIteration as end:
            found: Found = end.value
            return found

    def _send(self, send: Send) -> Reply | None:
        try:
            with self._http.stream(
                send.method, send.path, headers=send.headers, content=send.content
            ) as reply:
                body = Body(send.limit)
                body.take_all(reply.iter_bytes())
                return Reply(reply.status_code, reply.headers, body.data)
        except httpx.TransportError as error:
            refuse_untrusted(error)
            return None


class AsyncSplitClient:
    """`SplitClient` for an event loop: `await AsyncSplitClient.connect(...)`."""

    def __init__(self, http: httpx.AsyncClient, key: str) -> None:
        self._http = http
        self._key = key

    card: ModelCard
    device: Device

    @classmethod
    async def connect(cls, url: str, key: str, own: Holder, verify: Path | bool = True) -> Self:
        """Return a client that fetched and measured the encoder; see `SplitClient`."""
        http = httpx.AsyncClient(
            base_url=check_address(url), verify=choose_authorities(verify), timeout=TIMEOUT
        )
        found = cls(http, key)
        try:
            found.card, net = await found._drive(protocol.request_model(key, own.encoder))
            found.device = await asyncio.to_thread(own.device, found.card, net)
        except BaseException:
            await http.aclose()
            raise
        return found

    async def ask(self, image: Float[Tensor, "C H W"], uncertainty: bool = False) -> Answer:
        """Return the private answer about an image; see `SplitClient.ask`."""
        message = self.device.message(image)
        send = protocol.build_query(self._key, self.card.model, message, uncertainty)
        return await self._drive(
            protocol.request_answer(send, self.card.classes, self.device.leaked)
        )

    async def budget(self) -> Budget:
        """Return the client's account in epsilon."""
        return await self._drive(protocol.request_balance(self._key))

    async def close(self) -> None:
        """Close the connection."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        """Return this client."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connection."""
        await self.close()

    async def _drive(self, flow: Flow[Found]) -> Found:
        try:
            step = next(flow)
            while True:
                if isinstance(step, Wait):
                    await asyncio.sleep(step.seconds)
                    step = flow.send(None)
                else:
                    step = flow.send(await self._send(step))
        except StopIteration as end:
            found: Found = end.value
            return found

    async def _send(self, send: Send) -> Reply | None:
        try:
            async with self._http.stream(
                send.method, send.path, headers=send.headers, content=send.content
            ) as reply:
                body = Body(send.limit)
                async for part in reply.aiter_bytes():
                    body.take(part)
                return Reply(reply.status_code, reply.headers, body.data)
        except httpx.TransportError as error:
            refuse_untrusted(error)
            return None


class Body:
    """Collects a reply of at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.data = b""

    def take(self, part: bytes) -> None:
        """Add a part; ServiceError beyond the limit."""
        self.data += part
        if len(self.data) > self.limit:
            raise ServiceError(f"the reply is longer than {self.limit} bytes")

    def take_all(self, parts: Iterable[bytes]) -> None:
        """Add all parts."""
        for part in parts:
            self.take(part)


def refuse_untrusted(error: httpx.TransportError) -> None:
    """Refuse to try again where the trust is missing: ServiceError."""
    if "certificate" in str(error).lower():
        raise ServiceError(
            f"the service's certificate is not trusted: {error}; pass its authority as `verify`"
        ) from None


def check_address(url: str) -> str:
    """Return a service's address; ServiceError where key and messages would travel in clear."""
    parts = urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK):
        return url
    raise ServiceError(f"url is {url!r}, must begin with https:// (http:// only for this machine)")


def choose_authorities(verify: Path | bool) -> ssl.SSLContext:
    """Return whom to trust: the system's authorities, or those of a file; ServiceError on False."""
    if verify is False:
        raise ServiceError("verify is False: anybody could answer; pass the authority's file")
    if isinstance(verify, Path) and not verify.is_file():
        raise ServiceError(f"{verify} is no file; give the PEM file of the service's authority")
    found = ssl.create_default_context(cafile=None if verify is True else str(verify))
    found.minimum_version = ssl.TLSVersion.TLSv1_2
    return found
