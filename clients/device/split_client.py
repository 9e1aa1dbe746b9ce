"""Clients of a service for threads and for event loops: images stay here, messages leave."""

import asyncio
import ssl
import time
from pathlib import Path
from threading import Lock
from typing import Self, TypeVar
from urllib.parse import urlsplit

import httpx
from jaxtyping import Float
from torch import Tensor

from clients.device.conversation import (
    Compute,
    Conversation,
    HttpReply,
    HttpRequest,
    Pause,
    PrivatePrediction,
    ServiceClient,
    TakeTurn,
)
from clients.device.device import DeviceBuilder
from clients.service_messages import LOOPBACK_HOSTS, Budget
from fedcel.errors import ServiceError

ATTEMPT_TIMEOUT = httpx.Timeout(30.0, connect=5.0)  # seconds

Result = TypeVar("Result")


class SplitClient(ServiceClient):
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
        super().__init__(key, builder, encoder_file, renew=renew_encoder)
        self._turns = Lock()
        self._http = httpx.Client(
            base_url=check_url(url), verify=build_tls_context(verify), timeout=ATTEMPT_TIMEOUT
        )
        try:
            self._carry_on(self._connect())
        except BaseException:
            self._http.close()
            raise

    def ask(
        self, image: Float[Tensor, "C H W"], *, uncertainty: bool = False, group: str | None = None
    ) -> PrivatePrediction:
        """Get a private answer about an image; the same image has the same one, for nothing.

        Args:
            image: The image, (C, H, W) in [0, 1].
            uncertainty: Also ask for entropy and BALD, for their price.
            group: Name of the scene or person that the image shows: messages of a group tell more
                together than one does, and are metered together.

        Raises:
            LeakLimitError: All messages, or those of the group, would tell more than the limit;
                nothing was sent. NearDuplicateError where near-duplicates are refused.
            LeakError: The encoder of a new model version leaks more than is allowed.
            ServiceError: The service says no; SpentError where a budget is spent,
                ModelVersionError where it answers another model version.
        """
        return self._carry_on(self._ask(image, uncertainty, group))

    def budget(self) -> Budget:
        """Read the client's account, in epsilon: granted, spent, left; errors as of `ask`."""
        return self._carry_on(self._read(Budget, "/v1/budget"))

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
        outcome: object = None
        try:
            while True:
                match conversation.send(outcome):
                    case HttpRequest() as request:
                        outcome = self._send(request)
                    case Pause(seconds):
                        time.sleep(seconds)
                    case Compute(work):
                        outcome = work()
                    case TakeTurn(inner):
                        with self._turns:
                            outcome = self._carry_on(inner)
        except StopIteration as end:
            result: Result = end.value
            return result

    def _send(self, request: HttpRequest) -> HttpReply | None:
        method, path, headers, content, limit = request
        body = bytearray()
        try:
            with self._http.stream(method, path, headers=headers, content=content) as reply:
                for part in reply.iter_bytes():
                    extend_body(body, part, limit)
                return HttpReply(reply.status_code, reply.headers, bytes(body))
        except httpx.TransportError as error:
            refuse_untrusted(error)
            return None


class AsyncSplitClient(ServiceClient):
    """`SplitClient` for an event loop, where many questions may wait at once.

    Make it with `await AsyncSplitClient.connect(...)`; use it with `async with`, or close it.
    """

    _http: httpx.AsyncClient
    _turns: asyncio.Lock

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
        """Fetch the model's encoder and measure it; arguments and errors as of `SplitClient`."""
        client = cls(key, builder, encoder_file, renew=renew_encoder)
        client._turns = asyncio.Lock()
        client._http = httpx.AsyncClient(
            base_url=check_url(url), verify=build_tls_context(verify), timeout=ATTEMPT_TIMEOUT
        )
        try:
            await client._carry_on(client._connect())
        except BaseException:
            await client.close()
            raise
        return client

    async def ask(
        self, image: Float[Tensor, "C H W"], *, uncertainty: bool = False, group: str | None = None
    ) -> PrivatePrediction:
        """Get a private answer about an image; arguments and errors as of `SplitClient.ask`."""
        return await self._carry_on(self._ask(image, uncertainty, group))

    async def budget(self) -> Budget:
        """Read the client's account, as `SplitClient.budget` does."""
        return await self._carry_on(self._read(Budget, "/v1/budget"))

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
        outcome: object = None
        try:
            while True:
                match conversation.send(outcome):
                    case HttpRequest() as request:
                        outcome = await self._send(request)
                    case Pause(seconds):
                        await asyncio.sleep(seconds)
                    case Compute(work):
                        outcome = await asyncio.to_thread(work)
                    case TakeTurn(inner):
                        async with self._turns:
                            outcome = await self._carry_on(inner)
        except StopIteration as end:
            result: Result = end.value
            return result

    async def _send(self, request: HttpRequest) -> HttpReply | None:
        method, path, headers, content, limit = request
        body = bytearray()
        try:
            async with self._http.stream(method, path, headers=headers, content=content) as reply:
                async for part in reply.aiter_bytes():
                    extend_body(body, part, limit)
                return HttpReply(reply.status_code, reply.headers, bytes(body))
        except httpx.TransportError as error:
            refuse_untrusted(error)
            return None


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
