"""Ask a service about images that stay here: encode, add noise, ask, count what leaked."""

import asyncio
import math
import secrets
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Self, TypeVar, final
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
    request_prediction,
)
from clients.device.device import NEAR_SIGMAS, Device, PreparedMessage, describe_law
from clients.device.keyed_noise import load_device_key
from clients.device.message_groups import MessageGroups, NearDuplicatePolicy
from clients.device.renewal import DeviceBuilder, EncoderSource, MeasuredVersion
from clients.device.sent_messages import SentMessages
from clients.encoder_leak_guard import LeakGuard
from clients.service_messages import LOOPBACK_HOSTS, Budget, ExpectedCard, ModelCard
from fedcel.errors import ModelVersionError, ServiceError
from fedcel.nets import SplitNet
from fedcel.short_repr import summarise_record

ATTEMPT_TIMEOUT = httpx.Timeout(30.0, connect=5.0)  # seconds

Result = TypeVar("Result")


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
    state: str | Path | None = None
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
        state = None if self.state is None else Path(self.state)
        generator = torch.Generator().manual_seed(secrets.randbits(63))
        leak = LeakGuard(self.message_limit).check(net, self.images, self.labels, generator)
        return Device(
            net=net,
            shape=tuple(card.shape),
            law=describe_law(card, net),
            max_value=card.largest,
            leak=leak,
            limit=self.total_limit,
            key=load_device_key(state and state / "device.key"),
            sent=SentMessages(state and state / "sent.txt"),
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
        renew_encoder: Whether to go on with the model version that replaced this one, once the
            service no longer answers this one. Its encoder is fetched and measured as the first
            one was, before an image is encoded with it. A version that costs more, or answers
            other images or classes, is refused.

    Raises:
        ServiceError: The service cannot be reached or trusted, or says no.
        LeakError: The encoder leaks more than is allowed.
    """

    def __init__(
        self,
        url: str,
        key: str,
        builder: DeviceBuilder,
        verify: str | Path | bool = True,
        *,
        encoder_file: str | Path | None = None,
        renew_encoder: bool = False,
    ) -> None:
        self._key = key
        self._source = EncoderSource(key, builder, encoder_file)
        self._renews_encoder = renew_encoder
        self._refused: MeasuredVersion | None = None
        self._renewing = Lock()
        self._http = httpx.Client(
            base_url=check_url(url), verify=build_tls_context(verify), timeout=ATTEMPT_TIMEOUT
        )
        try:
            card, net = self._carry_on(self._source.request())
            self.version = self._source.measure(card, net)
        except BaseException:
            self._http.close()
            raise

    @property
    def card(self) -> ModelCard:
        """Return the card of the model version that is asked."""
        return self.version.card

    @property
    def device(self) -> Device:
        """Return what makes messages for the model version that is asked."""
        return self.version.device

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
            LeakError: The encoder of a new model version leaks more than is allowed.
            ServiceError: The service says no; SpentError where a budget is spent,
                ModelVersionError where it answers another model version.
        """
        version = self.version  # another thread may renew it meanwhile
        if version is self._refused:
            version = self._renew(version, may_be_back=True)
        message = version.device.prepare(image, group)
        try:
            return self._carry_on(self._query(version, message, uncertainty))
        except ModelVersionError:
            if not self._renews_encoder:
                raise
            version = self._renew(version)
        message = version.device.prepare(image, group, encoded_before=message)
        return self._carry_on(self._query(version, message, uncertainty))

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

    def _query(
        self, version: MeasuredVersion, message: PreparedMessage, uncertainty: bool
    ) -> Conversation[PrivatePrediction]:
        return begin_query(version, self._key, message, uncertainty=uncertainty)

    def _renew(self, refused: MeasuredVersion, *, may_be_back: bool = False) -> MeasuredVersion:
        """Return what replaced a version; the first of many threads fetches and measures it.

        Where nothing may replace it, later questions come here first: no message is sent in vain.
        """
        with self._renewing:
            if self.version is refused:
                self._refused = refused
                request = self._source.request_newer(refused, may_be_back=may_be_back)
                newer = self._carry_on(request)
                if newer is not None:
                    self.version = self._source.measure(*newer, refused)
                self._refused = None
            return self.version

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

    version: MeasuredVersion
    """What is asked."""

    def __init__(
        self, http: httpx.AsyncClient, key: str, source: EncoderSource, *, renew_encoder: bool
    ) -> None:
        self._http = http
        self._key = key
        self._source = source
        self._renews_encoder = renew_encoder
        self._refused: MeasuredVersion | None = None
        self._renewing = asyncio.Lock()

    @classmethod
    async def connect(
        cls,
        url: str,
        key: str,
        builder: DeviceBuilder,
        verify: str | Path | bool = True,
        *,
        encoder_file: str | Path | None = None,
        renew_encoder: bool = False,
    ) -> Self:
        """Fetch the model's encoder and measure it.

        Args:
            url: Address of the service; `http://` only for this machine.
            key: The client's API key.
            builder: `ImageOwner`, or another maker of devices.
            verify: File of the authority that signed the service's certificate, or True for the
                system's own.
            encoder_file: As of `SplitClient`.
            renew_encoder: As of `SplitClient`.

        Returns:
            A client of the service.

        Raises:
            ServiceError: The service cannot be reached or trusted, or says no.
            LeakError: The encoder leaks more than is allowed.
        """
        http = httpx.AsyncClient(
            base_url=check_url(url), verify=build_tls_context(verify), timeout=ATTEMPT_TIMEOUT
        )
        source = EncoderSource(key, builder, encoder_file)
        client = cls(http, key, source, renew_encoder=renew_encoder)
        try:
            card, net = await client._carry_on(source.request())
            client.version = await asyncio.to_thread(source.measure, card, net)
        except BaseException:
            await http.aclose()
            raise
        return client

    @property
    def card(self) -> ModelCard:
        """Return the card of the model version that is asked."""
        return self.version.card

    @property
    def device(self) -> Device:
        """Return what makes messages for the model version that is asked."""
        return self.version.device

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
            LeakError: The encoder of a new model version leaks more than is allowed.
            ServiceError: The service says no; SpentError where a budget is spent,
                ModelVersionError where it answers another model version.
        """
        version = self.version  # another task may renew it meanwhile
        if version is self._refused:
            version = await self._renew(version, may_be_back=True)
        message = version.device.prepare(image, group)
        try:
            return await self._carry_on(self._query(version, message, uncertainty))
        except ModelVersionError:
            if not self._renews_encoder:
                raise
            version = await self._renew(version)
        message = version.device.prepare(image, group, encoded_before=message)
        return await self._carry_on(self._query(version, message, uncertainty))

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

    def _query(
        self, version: MeasuredVersion, message: PreparedMessage, uncertainty: bool
    ) -> Conversation[PrivatePrediction]:
        return begin_query(version, self._key, message, uncertainty=uncertainty)

    async def _renew(
        self, refused: MeasuredVersion, *, may_be_back: bool = False
    ) -> MeasuredVersion:
        """Return what replaced a version; the first of many tasks fetches and measures it.

        Where nothing may replace it, later questions come here first: no message is sent in vain.
        """
        async with self._renewing:
            if self.version is refused:
                self._refused = refused
                request = self._source.request_newer(refused, may_be_back=may_be_back)
                newer = await self._carry_on(request)
                if newer is not None:
                    measure = self._source.measure
                    self.version = await asyncio.to_thread(measure, *newer, refused)
                self._refused = None
            return self.version

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
    version: MeasuredVersion, key: str, message: PreparedMessage, *, uncertainty: bool
) -> Conversation[PrivatePrediction]:
    """Return the conversation about a message, which was counted."""
    card, leaked_bits = version.card, version.device.leaked_bits
    request = build_query(key, card.model, message.content, uncertainty=uncertainty)
    return request_prediction(request, card.classes, leaked_bits, message.charge)


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


def build_tls_context(verify: str | Path | bool) -> ssl.SSLContext:
    """Return whom to trust: the system's authorities, or those of a file; ServiceError on False."""
    if verify is False:
        raise ServiceError("verify is False: anybody could answer; pass the authority's file")
    if verify is not True and not Path(verify).is_file():
        raise ServiceError(f"{verify} is no file; give the PEM file of the service's authority")
    context = ssl.create_default_context(cafile=None if verify is True else str(verify))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
