"""Clients of a service, one to call from threads and one for an event loop; images stay here."""

import asyncio
import os
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Self, TypeVar

from jaxtyping import Float
from torch import Tensor

from clients.device.conversation import PrivatePrediction, ServiceClient
from clients.device.device import DeviceBuilder
from clients.service_messages import Budget
from fedcel.errors import ServiceError

Result = TypeVar("Result")


class SplitClient(ServiceClient):
    """Client of a split-inference service; the image never leaves the device.

    It fetches the model's encoder and measures its leak first. Use it as a context manager, or
    close it. Example::

        owner = ImageOwner(images, labels, state=Path("device"))
        with SplitClient("https://localhost:8443", key, owner) as client:
            print(client.ask(image).probabilities)

    Args:
        url: Address of the service; `http://` only for this machine.
        key: The client's API key.
        builder: `ImageOwner`, or another builder of devices.
        verify: File of the authority that signed the service's certificate, or True for the
            system's own.
        renew_encoder: Whether to switch to the next model version once the service no longer
            answers this one. Its encoder is fetched and measured before use. A version that costs
            more, or has another image shape or other classes, is refused.

    Raises:
        ServiceError: The service cannot be reached or trusted, or refuses.
        LeakError: The encoder leaks more than is allowed.
    """

    def __init__(
        self,
        url: str,
        key: str,
        builder: DeviceBuilder,
        verify: str | Path | bool = True,
        *,
        renew_encoder: bool = False,
    ) -> None:
        super().__init__(url, key, builder, verify, renew_encoder=renew_encoder)
        self._process = os.getpid()
        self._lock = Lock()
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="fedcel-client", daemon=True)
        try:
            self._thread.start()
            self._wait_for(self._connect())
        except BaseException:
            self.close()
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
                nothing was sent.
            LeakError: The encoder of a new model version leaks more than is allowed.
            ServiceError: The service says no; SpentError where a budget is spent,
                ModelVersionError where it answers another model version.
        """
        return self._wait_for(self._ask(image, uncertainty, group))

    def budget(self) -> Budget:
        """Read the client's account, in epsilon: granted, spent, left; errors as of `ask`."""
        return self._wait_for(self._read(Budget, "/v1/budget"))

    def close(self) -> None:
        """Close the connection; questions that other threads still ask end in a ServiceError."""
        if self._process != os.getpid():
            return
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            end = None
            if self._thread.is_alive():  # not where Ctrl-C came before its start
                end = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        if end is not None:
            end.result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        """Cancel the questions that are asked, and close the connection; no thread is left."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._http.aclose()
        await asyncio.get_running_loop().shutdown_default_executor()

    def __enter__(self) -> Self:
        """Return this client."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self.close()

    def _wait_for(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Let this client's thread do the work, and return its result."""
        future: Future[Result] | None = None
        if self._process == os.getpid():
            with self._lock:
                if not self._is_closed:
                    future = asyncio.run_coroutine_threadsafe(work, self._loop)
        if future is None:
            work.close()
            raise ServiceError("the client is closed, or was made before a fork; make another one")
        try:
            return future.result()
        except CancelledError:
            raise ServiceError("the client was closed while it asked; make another one") from None
        except BaseException:
            future.cancel()  # after Ctrl-C nothing is sent any more
            raise


class AsyncSplitClient(ServiceClient):
    """`SplitClient` for an event loop, with many concurrent queries.

    Make it with `await AsyncSplitClient.connect(...)`; use it with `async with`, or close it.
    """

    @classmethod
    async def connect(
        cls,
        url: str,
        key: str,
        builder: DeviceBuilder,
        verify: str | Path | bool = True,
        *,
        renew_encoder: bool = False,
    ) -> Self:
        """Fetch the model's encoder and measure it; arguments and errors as of `SplitClient`."""
        client = cls(url, key, builder, verify, renew_encoder=renew_encoder)
        try:
            await client._connect()
        except BaseException:
            await client.close()
            raise
        return client

    async def ask(
        self, image: Float[Tensor, "C H W"], *, uncertainty: bool = False, group: str | None = None
    ) -> PrivatePrediction:
        """Get a private answer about an image; arguments and errors as of `SplitClient.ask`."""
        return await self._ask(image, uncertainty, group)

    async def budget(self) -> Budget:
        """Read the client's account, as `SplitClient.budget` does."""
        return await self._read(Budget, "/v1/budget")

    async def close(self) -> None:
        """Close the connection."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        """Return this client."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connection."""
        await self.close()
