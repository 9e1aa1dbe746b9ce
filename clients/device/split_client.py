"""Ask a service about images that stay here: encode, add noise, ask, count what leaked."""

import asyncio
import math
import secrets
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self, TypeVar, final, runtime_checkable
from urllib.parse import urlsplit

import httpx
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clients.device.conversation import (
    Conversation,
    HttpReply,
    HttpRequest,
    Pause,
    PrivatePrediction,
    build_query,
    request_budget,
    request_model,
    request_prediction,
)
from clients.device.device import NEAR_SIGMAS, Device, describe_law
from clients.device.keyed_noise import load_device_key
from clients.device.message_groups import MessageGroups, NearDuplicatePolicy
from clients.device.sent_messages import SentMessages
from clients.encoder_leak_guard import LeakGuard
from clients.service_messages import LOOPBACK_HOSTS, Budget, ExpectedCard, ModelCard
from fedcel.errors import ServiceError
from fedcel.nets import SplitNet
from fedcel.short_repr import summarise_record

ATTEMPT_TIMEOUT = httpx.Timeout(30.0, connect=5.0)  # seconds

Result = TypeVar("Result")


@runtime_checkable
class DeviceBuilder(Protocol):
    """Who makes a device of what a service sent."""

    @property
    def encoder(self) -> nn.Module | None:
        """Return a module of the caller's own, into which the received values go; or None."""
        ...

    def build_device(self, card: ModelCard, net: SplitNet) -> Device:
        """Make a device, or refuse the encoder.

        Args:
            card: The served model's card.
            net: The received encoder and cut.

        Returns:
            The device.

        Raises:
            LeakError: The encoder leaks more than is allowed.
        """
        ...


@final
@dataclass(frozen=True)
class ImageOwner:
    """What a device's owner brings: images to measure with, limits, where to keep the secret.

    Args:
        images: Images to measure with, (M, C, H, W) in [0, 1], 20 or more.
        labels: Their classes, (M,).
        message_limit: Bits beyond the label that one message may tell.
        total_limit: Bits that all distinct messages together may tell.
        state: Folder for the device's key and the marks of what was sent. Without it both last as
            long as the process, and the same image is another message after a restart.
        encoder: Module for the received values, where the service's net is not the project's own.
        group_limit: Bits that all messages of nearly the same image together may tell, such as
            frames of one scene; None: no limit of their own.
        near_duplicates: What is done about an image that is nearly an earlier one: `count` sends it
            and charges its group, `refuse` sends nothing, `reuse` asks with the earlier message,
            whose answer is free.
        near_sigmas: Images are nearly the same where their features are at most so many standard
            deviations of the noise apart; 0: only where the caller names a group.
    """

    images: Float[Tensor, "M C H W"]
    labels: Int[Tensor, " M"]
    message_limit: float = 1.0
    total_limit: float = 1000.0
    state: Path | None = None
    encoder: nn.Module | None = None
    group_limit: float | None = None
    near_duplicates: NearDuplicatePolicy = "count"
    near_sigmas: float = NEAR_SIGMAS

    def __repr__(self) -> str:
        """Show no image: whatever prints this may be a log that leaves the device."""
        return summarise_record(self)

    def build_device(self, card: ModelCard, net: SplitNet) -> Device:
        """Measure a received encoder, and make a device with it.

        Args:
            card: The served model's card.
            net: The received encoder and cut.

        Returns:
            The device.

        Raises:
            LeakError: One message may tell more than `message_limit`, or the images cannot show it.
        """
        generator = torch.Generator().manual_seed(secrets.randbits(63))
        leak = LeakGuard(self.message_limit).check(net, self.images, self.labels, generator)
        return Device(
            net=net,
            shape=tuple(card.shape),
            law=describe_law(card, net),
            max_value=card.largest,
            leak=leak,
            limit=self.total_limit,
            key=load_device_key(self.state and self.state / "device.key"),
            sent=SentMessages(self.state and self.state / "sent.txt"),
            group_limit=math.inf if self.group_limit is None else self.group_limit,
            near_duplicates=self.near_duplicates,
            groups=MessageGroups(self.near_sigmas),
        )


class SplitClient:
    """Asks a split-inference service; the image itself never leaves.

    It fetches the model's encoder and measures it at once. Use it as a context manager, or close
    it. Example::

        owner = ImageOwner(images, labels, state=Path("device"))
        with SplitClient("https://localhost:8443", key, owner) as client:
            print(client.ask(image).probabilities)

    Args:
        url: Address of the service; `http://` only for this machine.
        key: The client's API key.
        builder: `ImageOwner`, or another maker of devices.
        verify: File of the authority that signed the service's certificate, or True for the
            system's own.
        encoder_file: `encoder.safetensors` of `fedcel export --hub-folder`, in place of the
            download; it has to be the encoder of the model that is served.

    Raises:
        ServiceError: The service cannot be reached or trusted, or says no.
        LeakError: The encoder leaks more than is allowed.
    """

    card: ModelCard
    device: Device

    def __init__(
        self,
        url: str,
        key: str,
        builder: DeviceBuilder,
        verify: Path | bool = True,
        *,
        encoder_file: Path | None = None,
    ) -> None:
        self._key = key
        self._http = httpx.Client(
            base_url=check_url(url), verify=build_tls_context(verify), timeout=ATTEMPT_TIMEOUT
        )
        try:
            request = request_model(key, builder.encoder, encoder_file)
            self.card, net = self._carry_on(request)
            self.device = builder.build_device(self.card, net)
        except BaseException:
            self._http.close()
            raise

    @property
    def claimed_answers(self) -> ExpectedCard | None:
        """Return what the service claims that its answers are worth; None where it says nothing.

        Nothing on the device checks it. The leak, in `device.leak`, is measured here.
        """
        return self.card.expected

    def ask(
        self, image: Float[Tensor, "C H W"], *, uncertainty: bool = False, group: str | None = None
    ) -> PrivatePrediction:
        """Get a private answer about an image.

        Args:
            image: The image, (C, H, W) in [0, 1].
            uncertainty: Also ask for entropy and BALD, for their price.
            group: Name of the scene or person that the image shows: messages of a group tell more
                together than one does, and are metered together.

        Returns:
            The answer; the same image has the same one, and costs nothing again.

        Raises:
            LeakLimitError: All messages, or those of the group, would tell more than the limit;
                nothing was sent. NearDuplicateError where near-duplicates are refused.
            ServiceError: The service says no; SpentError where a budget is spent.
        """
        return self._carry_on(
            begin_query(
                self.device, self.card, self._key, image, uncertainty=uncertainty, group=group
            )
        )

    def budget(self) -> Budget:
        """Read the client's account.

        Returns:
            What it was granted, has spent and has left, in epsilon.

        Raises:
            ServiceError: The service says no.
        """
        return self._carry_on(request_budget(self._key))

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def __enter__(self) -> Self:
        """Return this client."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self.close()

    def _carry_on(self, conversation: Conversation[Result]) -> Result:
        reply = None
        try:
            while True:
                step, reply = conversation.send(reply), None
                if isinstance(step, Pause):
                    time.sleep(step.seconds)
                else:
                    reply = self._send(step)
        except StopIteration as end:
            result: Result = end.value
            return result

    def _send(self, request: HttpRequest) -> HttpReply | None:
        body = bytearray()
        try:
            with self._http.stream(
                request.method, request.path, headers=request.headers, content=request.content
            ) as reply:
                for part in reply.iter_bytes():
                    extend_body(body, part, request.limit)
                return HttpReply(reply.status_code, reply.headers, bytes(body))
        except httpx.TransportError as error:
            refuse_untrusted(error)
            return None


class AsyncSplitClient:
    """`SplitClient` for an event loop, where many questions may wait at once.

    Make it with `await AsyncSplitClient.connect(...)`; use it with `async with`, or close it.
    """

    card: ModelCard
    device: Device

    def __init__(self, http: httpx.AsyncClient, key: str) -> None:
        self._http = http
        self._key = key

    @classmethod
    async def connect(
        cls,
        url: str,
        key: str,
        builder: DeviceBuilder,
        verify: Path | bool = True,
        *,
        encoder_file: Path | None = None,
    ) -> Self:
        """Fetch the model's encoder and measure it.

        Args:
            url: Address of the service; `http://` only for this machine.
            key: The client's API key.
            builder: `ImageOwner`, or another maker of devices.
            verify: File of the authority that signed the service's certificate, or True for the
                system's own.
            encoder_file: As of `SplitClient`.

        Returns:
            A client of the service.

        Raises:
            ServiceError: The service cannot be reached or trusted, or says no.
            LeakError: The encoder leaks more than is allowed.
        """
        http = httpx.AsyncClient(
            base_url=check_url(url), verify=build_tls_context(verify), timeout=ATTEMPT_TIMEOUT
        )
        client = cls(http, key)
        try:
            request = request_model(key, builder.encoder, encoder_file)
            client.card, net = await client._carry_on(request)
            client.device = await asyncio.to_thread(builder.build_device, client.card, net)
        except BaseException:
            await http.aclose()
            raise
        return client

    @property
    def claimed_answers(self) -> ExpectedCard | None:
        """Return what the service claims that its answers are worth; None where it says nothing.

        Nothing on the device checks it. The leak, in `device.leak`, is measured here.
        """
        return self.card.expected

    async def ask(
        self, image: Float[Tensor, "C H W"], *, uncertainty: bool = False, group: str | None = None
    ) -> PrivatePrediction:
        """Get a private answer about an image.

        Args:
            image: The image, (C, H, W) in [0, 1].
            uncertainty: Also ask for entropy and BALD, for their price.
            group: Name of the scene or person that the image shows: messages of a group tell more
                together than one does, and are metered together.

        Returns:
            The answer; the same image has the same one, and costs nothing again.

        Raises:
            LeakLimitError: All messages, or those of the group, would tell more than the limit;
                nothing was sent. NearDuplicateError where near-duplicates are refused.
            ServiceError: The service says no; SpentError where a budget is spent.
        """
        return await self._carry_on(
            begin_query(
                self.device, self.card, self._key, image, uncertainty=uncertainty, group=group
            )
        )

    async def budget(self) -> Budget:
        """Read the client's account.

        Returns:
            What it was granted, has spent and has left, in epsilon.

        Raises:
            ServiceError: The service says no.
        """
        return await self._carry_on(request_budget(self._key))

    async def close(self) -> None:
        """Close the connection."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        """Return this client."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connection."""
        await self.close()

    async def _carry_on(self, conversation: Conversation[Result]) -> Result:
        reply = None
        try:
            while True:
                step, reply = conversation.send(reply), None
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                else:
                    reply = await self._send(step)
        except StopIteration as end:
            result: Result = end.value
            return result

    async def _send(self, request: HttpRequest) -> HttpReply | None:
        body = bytearray()
        try:
            async with self._http.stream(
                request.method, request.path, headers=request.headers, content=request.content
            ) as reply:
                async for part in reply.aiter_bytes():
                    extend_body(body, part, request.limit)
                return HttpReply(reply.status_code, reply.headers, bytes(body))
        except httpx.TransportError as error:
            refuse_untrusted(error)
            return None


def begin_query(
    device: Device,
    card: ModelCard,
    key: str,
    image: Float[Tensor, "C H W"],
    *,
    uncertainty: bool,
    group: str | None,
) -> Conversation[PrivatePrediction]:
    """Encode and count an image now; return the conversation about it."""
    message = device.prepare(image, group)
    request = build_query(key, card.model, message.content, uncertainty=uncertainty)
    return request_prediction(request, card.classes, device.leaked_bits, message.charge)


def extend_body(body: bytearray, part: bytes, limit: int) -> None:
    """Add a part of a reply; ServiceError beyond the limit."""
    body += part
    if len(body) > limit:
        raise ServiceError(f"the reply is longer than {limit} bytes")


def refuse_untrusted(error: httpx.TransportError) -> None:
    """Refuse to try again where the trust is missing: ServiceError."""
    if "certificate" in str(error).lower():
        raise ServiceError(
            f"the service's certificate is not trusted: {error}; pass its authority as `verify`"
        ) from None


def check_url(url: str) -> str:
    """Return a service's address; ServiceError where key and messages would travel in clear."""
    parts = urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK_HOSTS):
        return url
    raise ServiceError(f"url is {url!r}, must begin with https:// (http:// only for this machine)")


def build_tls_context(verify: Path | bool) -> ssl.SSLContext:
    """Return whom to trust: the system's authorities, or those of a file; ServiceError on False."""
    if verify is False:
        raise ServiceError("verify is False: anybody could answer; pass the authority's file")
    if isinstance(verify, Path) and not verify.is_file():
        raise ServiceError(f"{verify} is no file; give the PEM file of the service's authority")
    context = ssl.create_default_context(cafile=None if verify is True else str(verify))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
