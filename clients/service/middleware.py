"""ASGI middleware: an application's logits leave as private, paid answers only."""

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clients.service.access import RateLimiter, check_request_id
from clients.service.app import build_reply, read_body
from clients.service.message_identity import identify_message
from clients.service.private_answers import PrivateAnswer
from clients.service.private_layer import LogitQuery, PrivateLayer
from clients.service.problems import (
    ProblemError,
    ProblemKind,
    describe_place,
    explain_ledger,
    explain_refusal,
)
from clients.service.worker import Batcher, run_in_thread
from fedcel.errors import LedgerError
from fedcel.privacy.ledger import Refusal

LOGGER = logging.getLogger("fedcel.service")
PREFLIGHT_REMEDY = (
    "A browser's preflight: the operator adds CORSMiddleware after PrivacyMiddleware, so that it "
    "comes first."
)
MAX_BATCH = 128
MAX_WAITING = 256


def read_logits(body: bytes) -> Sequence[float]:
    """Return the field `logits` of an application's reply to one input; ValueError without one."""
    fields = json.loads(body)
    row = fields.get("logits") if isinstance(fields, dict) else None
    if isinstance(row, list) and len(row) == 1 and isinstance(row[0], list):
        row = row[0]
    if not isinstance(row, list) or not all(type(value) in (int, float) for value in row):
        raise ValueError("the application's reply has no list of numbers `logits`; give `read`")
    return row


@final
class PrivacyMiddleware:
    """ASGI middleware that makes an application's predictions private.

    A request to one of `paths` needs a client's key (`Authorization: Bearer KEY`) and an
    `Idempotency-Key`. The application is called with its body, its query and its content type, and
    with no other header. Its logits are charged and perturbed; nothing else of its reply is sent.
    All other paths are answered with 404.

    Example::

        layer = PrivateLayer(LabelOnly(epsilon=4, classes=10), "budget.db", model="digits-1")
        app.add_middleware(PrivacyMiddleware, layer=layer, paths=["/predict"])

    Args:
        app: The application.
        layer: The private layer; closed when the application ends.
        paths: Addresses of inputs, sent by POST.
        open_paths: Addresses that everybody may read, such as `/healthz`; their replies must not
            depend on an input.
        read: Reads a row of logits from the application's reply to one input.
        max_bytes: Largest size of an input.
        rate: Average queries per second of one client.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        layer: PrivateLayer,
        paths: Sequence[str],
        open_paths: Sequence[str] = (),
        read: Callable[[bytes], Sequence[float]] = read_logits,
        max_bytes: int = 2**20,
        rate: float = 50.0,
    ) -> None:
        self.app = app
        self.layer = layer
        self.paths = frozenset(paths)
        self.open_paths = frozenset(open_paths) - self.paths
        self.read = read
        self.max_bytes = max_bytes
        self.rates = RateLimiter(rate)
        self._thread = ThreadPoolExecutor(1, "fedcel-answers")
        self._batcher: Batcher[LogitQuery, PrivateAnswer | Refusal] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, self._close_at_the_end(send))
        elif scope["type"] == "http" and scope["path"] in self.open_paths:
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            try:
                response = build_reply((await self._answer(scope, receive)).to_json())
            except ProblemError as problem:
                response = problem.to_response()
            await response(scope, receive, send)
        else:  # a websocket would be a way around
            await send({"type": "websocket.close", "code": 1008})

    async def _answer(self, scope: Scope, receive: Receive) -> PrivateAnswer:
        if scope["path"] not in self.paths:
            raise ProblemError(ProblemKind.NOT_FOUND, "Ask one of the paths that are served.")
        headers = Headers(scope=scope)
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            raise ProblemError(ProblemKind.METHOD, PREFLIGHT_REMEDY)
        if scope["method"] != "POST":
            raise ProblemError(ProblemKind.METHOD, "Send the input by POST.")
        client = self.layer.authenticate(headers.get("authorization"))
        self.rates.check(client)
        request_id = headers.get("idempotency-key", "")
        check_request_id(request_id)
        body = await read_body(receive, self.max_bytes)
        logits = await self._compute_logits(scope, body)
        message = identify_message(scope, body)
        return await self._charge(LogitQuery(client, request_id, message, logits))

    async def _compute_logits(self, scope: Scope, body: bytes) -> Sequence[float]:
        """Have the application compute an input's logits; nobody sees another word of its reply."""
        incoming = iter([{"type": "http.request", "body": body, "more_body": False}])
        parts = bytearray()
        status = 500

        async def receive() -> Message:
            return next(incoming, {"type": "http.disconnect"})

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                parts.extend(message.get("body", b""))

        # All that decides its answer, with the body; how that was sent does not.
        headers = [pair for pair in scope["headers"] if pair[0].lower() == b"content-type"]
        headers.append((b"content-length", b"%d" % len(body)))
        try:
            await self.app({**scope, "headers": headers}, receive, send)
            is_refused = 400 <= status < 500
            logits = [] if is_refused else [float(value) for value in self.read(bytes(parts))]
            if not is_refused and (status, len(logits)) != (200, self.layer.classes):
                raise ValueError(f"{len(logits)} logits, must be {self.layer.classes}")
        except Exception as error:
            LOGGER.error("the application failed: status %d, %s", status, describe_place(error))
            raise ProblemError(ProblemKind.FAILED, "It is in the service's log.") from None
        if is_refused:
            raise ProblemError(ProblemKind.INVALID, "The model does not take this input.")
        return logits

    async def _charge(self, query: LogitQuery) -> PrivateAnswer:
        """Return the paid answer; ProblemError says why there is none."""
        batcher = self._batcher
        if batcher is None or batcher.loop is not asyncio.get_running_loop():
            # A test client without a lifespan has a loop for each request.
            self._batcher = batcher = Batcher(
                lambda queries: run_in_thread(self._thread, self.layer.answer_together, queries),
                max_batch=MAX_BATCH,
                max_waiting=MAX_WAITING,
            )
        try:
            reply = await batcher.submit(query)
        except LedgerError as error:
            LOGGER.error("ledger", exc_info=error)
            raise explain_ledger() from None
        if isinstance(reply, Refusal):
            raise explain_refusal(reply)
        return reply

    def _close_at_the_end(self, send: Send) -> Send:
        """Return `send` for the application's life, with the layer closed at its end."""

        async def send_and_close(message: Message) -> None:
            if message["type"].startswith("lifespan.shutdown"):
                if self._batcher is not None:
                    await self._batcher.close()
                await asyncio.to_thread(self.layer.close)
            await send(message)

        return send_and_close
