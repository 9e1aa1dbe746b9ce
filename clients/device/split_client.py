"""Client of a split-inference service; images stay here."""

import os
from pathlib import Path
from typing import Self

import httpx
from jaxtyping import Float
from torch import Tensor

from clients.device.conversation import (
    MAX_REPLY_BYTES,
    HttpReply,
    HttpRequest,
    PrivatePrediction,
    build_query,
    build_tls_context,
    check_url,
    parse_reply,
    read_prediction,
    send_with_retries,
)
from clients.device.device import Device, DeviceBuilder
from clients.device.encoder import MAX_ENCODER_BYTES, read_encoder
from clients.service_messages import Budget, ExpectedCard, ModelCard
from fedcel.errors import ServiceError

ATTEMPT_TIMEOUT = httpx.Timeout(30.0, connect=5.0)  # seconds


class SplitClient:
    """Client of a split-inference service; the image never leaves the device.

    It fetches the model's encoder and measures its leak first. Threads may share it. Use it as a
    context manager, or close it. Example::

        owner = ImageOwner(images, labels, state=Path("device"))
        with SplitClient("https://localhost:8443", key, owner) as client:
            print(client.ask(image).probabilities)

    Args:
        url: Address of the service; `http://` only for this machine.
        key: The client's API key.
        builder: `ImageOwner`, or another builder of devices.
        verify: File of the authority that signed the service's certificate, or True for the
            system's own.

    Raises:
        ServiceError: The service cannot be reached or trusted, or refuses.
        LeakError: The encoder leaks more than is allowed.
    """

    device: Device
    """Makes messages; its encoder passed the measurement."""

    def __init__(
        self, url: str, key: str, builder: DeviceBuilder, verify: str | Path | bool = True
    ) -> None:
        if not (key and key.isascii() and key.isprintable()):
            raise ServiceError(
                "the key holds a sign that none has, such as an end of line; give it as "
                "`fedcel ledger keys` prints it"
            )
        self._key = key
        self._process = os.getpid()
        self._http = httpx.Client(
            base_url=check_url(url), verify=build_tls_context(verify), timeout=ATTEMPT_TIMEOUT
        )
        try:
            self.device = self._fetch_device(builder)
        except BaseException:
            self.close()
            raise

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
            ServiceError: The service says no; SpentError where a budget is spent,
                ModelVersionError where it answers another model version.
        """
        message = self.device.build_message(image, group)
        leaked_bits = self.device.leaked_bits
        query = build_query(self._key, self.card.model, message, uncertainty=uncertainty)
        reply = send_with_retries(self._send, query)
        return read_prediction(reply, self.card.classes, leaked_bits)

    def budget(self) -> Budget:
        """Read the client's account, in epsilon: granted, spent, left; errors as of `ask`."""
        return parse_reply(Budget, self._fetch("/v1/budget"))

    def close(self) -> None:
        """Close the connection."""
        if self._process == os.getpid():
            self._http.close()

    def __enter__(self) -> Self:
        """Return this client."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self.close()

    def _fetch_device(self, builder: DeviceBuilder) -> Device:
        """Build and measure a device of the served model; LeakError where it leaks too much."""
        card = parse_reply(ModelCard, self._fetch("/v1/model"))
        size = card.encoder.bytes
        if size > MAX_ENCODER_BYTES:
            raise ServiceError(f"the encoder has {size} bytes, at most {MAX_ENCODER_BYTES}")
        data = self._fetch("/v1/encoder", size).body
        return builder.build_device(card, read_encoder(card, data, builder.encoder))

    def _fetch(self, path: str, limit: int = MAX_REPLY_BYTES) -> HttpReply:
        request = HttpRequest("GET", path, {"Authorization": f"Bearer {self._key}"}, limit=limit)
        return send_with_retries(self._send, request)

    def _send(self, request: HttpRequest) -> HttpReply | None:
        """Send a request once; None where no reply came."""
        if self._http.is_closed or self._process != os.getpid():
            raise ServiceError("the client is closed, or was made before a fork; make another one")
        method, path, headers, content, limit = request
        body = bytearray()
        try:
            with self._http.stream(method, path, headers=headers, content=content) as reply:
                for part in reply.iter_bytes():
                    body += part
                    if len(body) > limit:
                        raise ServiceError(f"the reply is longer than {limit} bytes")
                return HttpReply(reply.status_code, reply.headers, bytes(body))
        except httpx.DecodingError as error:
            raise ServiceError(f"the reply cannot be decoded: {error}") from None
        except httpx.TransportError as error:
            if "certificate" in str(error).lower():  # to try again would not help
                raise ServiceError(
                    f"the service's certificate is not trusted: {error}; pass its authority as "
                    "`verify`"
                ) from None
            return None
