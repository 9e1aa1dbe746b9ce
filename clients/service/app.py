"""The HTTP service: private answers to smashed data.

The answers protect the INPUT of a query against the reader of the answer, per query; the images
that the model was trained on are not protected by them, and answers add up. The service itself
reads the messages: what they tell of an image is up to encoder and noise at the cut.
"""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import numpy as np
from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from prometheus_client import generate_latest
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clients.service.access import check_request_id
from clients.service.monitoring import LOGGER
from clients.service.private_answers import Query
from clients.service.problems import PROBLEM_MEDIA_TYPE, ProblemError, ProblemKind
from clients.service.service import Service
from clients.service_messages import (
    MAX_VALUE,
    QUERY_PATH,
    READ_PATHS,
    REQUEST_ID_PATTERN,
    VERSION_PATTERN,
    Answer,
    Budget,
    ModelCard,
    ProblemBody,
)
from fedcel.errors import RunError
from fedcel.privacy.ledger import MICRO

BINARY_TYPE = "application/octet-stream"
JSON_TYPE = "application/json"
BODY_SECONDS = 10.0
KEY = Depends(HTTPBearer(scheme_name="key", auto_error=False))  # for the document only
QUERY_DOCUMENTATION: dict[str, Any] = {
    "parameters": [
        {
            "name": name,
            "in": "header",
            "required": True,
            "schema": {"type": "string", "pattern": pattern},
        }
        for name, pattern in (
            ("Idempotency-Key", REQUEST_ID_PATTERN),
            ("Model-Version", VERSION_PATTERN),
        )
    ]
    + [{"name": "uncertainty", "in": "query", "schema": {"type": "boolean", "default": False}}],
    "requestBody": {
        "required": True,
        "content": {
            BINARY_TYPE: {
                "schema": {
                    "type": "string",
                    "format": "binary",
                    "description": "D values of float32, little-endian.",
                }
            },
        },
    },
}
OPEN_PATHS = ("/healthz", "/readyz", "/metrics")


class ServiceRoute(APIRoute):
    """A declared route of one path, whose handler needs none of the framework's layers around it.

    These cost more than all the privacy. The framework's pattern of `/v1/model` takes
    `/v1/model%0A`, too.
    """

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match a request's path, then its method."""
        if scope["type"] != "http" or scope["path"] != self.path:
            return Match.NONE, {}
        return Match.FULL if scope["method"] in (self.methods or ()) else Match.PARTIAL, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the handler answer a request."""
        methods = self.methods or ()
        if scope["method"] not in methods:
            raise HTTPException(405, headers={"Allow": ", ".join(methods)})
        response: Response = await self.endpoint(Request(scope, receive))
        await response(scope, receive, send)


class ServiceApp(FastAPI):
    """Application of a service, which starts and ends with it; counts and logs its requests.

    The OpenAPI document describes each route with the docstring of its handler.
    """

    def __init__(self, service: Service) -> None:
        super().__init__(
            title="fedcel", version="1", lifespan=self.run_service, docs_url=None, redoc_url=None
        )
        self.service = service
        self.router.route_class = ServiceRoute
        self.post(
            QUERY_PATH,
            name="query",
            response_model=Answer,
            dependencies=[KEY],
            responses=describe_refusals(401, 403, 408, 409, 413, 415, 422, 429, 500, 503),
            openapi_extra=QUERY_DOCUMENTATION,
        )(self.answer_query)
        read = Callable[[Request], Awaitable[Response]]
        routes: tuple[tuple[str, read, type[BaseModel] | None, tuple[int, ...]], ...] = (
            ("/v1/model", self.describe_model, ModelCard, (401, 429)),
            ("/v1/encoder", self.send_encoder, None, (401, 429)),
            ("/v1/budget", self.read_budget, Budget, (401, 429, 503)),
            ("/healthz", self.report_alive, None, (503,)),
            ("/readyz", self.report_ready, None, (503,)),
            ("/metrics", self.send_metrics, None, (503,)),
        )
        for path, handler, response_model, statuses in routes:
            self.get(
                path,
                name=path.rpartition("/")[2],
                response_model=response_model,
                response_class=JSONResponse if response_model else Response,
                dependencies=[KEY] if path in READ_PATHS else None,
                responses=describe_refusals(*statuses),
            )(handler)

    @asynccontextmanager
    async def run_service(self, _: FastAPI) -> AsyncIterator[None]:
        """Start the service, and end it."""
        await self.service.start()
        yield
        await self.service.end()

    def build_middleware_stack(self) -> ASGIApp:
        """Return what answers a request: one layer, in the place of the framework's three."""
        return self.answer

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on and note how it ended; a failure is answered as a problem."""
        if scope["type"] != "http":

            async def send_without_words(message: Message) -> None:
                """Leave out the traceback of a failure, which the service logs itself."""
                await send({name: value for name, value in message.items() if name != "message"})

            await self.router(scope, receive, send_without_words)
            return
        start = time.perf_counter()
        path, status = scope["path"], 0
        log_fields: dict[str, str] = {}
        scope["fedcel"] = log_fields

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.router(scope, receive, send_and_note)
        except Exception as error:
            response = explain_failure(error)
            if status == 0:
                await response(scope, receive, send_and_note)
        route = path if path in (QUERY_PATH, *READ_PATHS, *OPEN_PATHS) else "other"
        seconds = time.perf_counter() - start
        count, timer = self.service.metrics.find_route(route, status)
        count.inc()
        timer.observe(seconds)
        if LOGGER.isEnabledFor(logging.INFO):
            line = {"route": route, "status": status, "ms": round(1000 * seconds, 2), **log_fields}
            LOGGER.info("request", extra=line)

    def identify_client(self, scope: Scope, headers: Mapping[bytes, bytes]) -> str:
        """Return who asks; ProblemError where a request shows no key, or asks too often."""
        header = headers.get(b"authorization", b"").decode("latin-1")
        client = self.service.keys.authenticate(header).client
        self.service.rates[scope["path"]].check(client)
        scope["fedcel"]["client"] = client
        return client

    async def answer_query(self, request: Request) -> Response:
        """Answer one message, privately, for its price; the same message again is free."""
        headers = read_headers(request.scope)
        client = self.identify_client(request.scope, headers)
        query = await parse_query(request, headers, client, self.service)
        request.scope["fedcel"]["request"] = query.request
        answer = await self.service.answer(query)
        return build_reply(answer.to_json())

    async def describe_model(self, request: Request) -> Response:
        """Describe the served model and its price."""
        self.identify_client(request.scope, read_headers(request.scope))
        return build_reply(self.service.model_card.model_dump_json(by_alias=True))

    async def send_encoder(self, request: Request) -> Response:
        """Give the device's half: safetensors, its settings in the metadata."""
        self.identify_client(request.scope, read_headers(request.scope))
        return build_reply(self.service.model.encoder, BINARY_TYPE)

    async def read_budget(self, request: Request) -> Response:
        """Read the account of the asking client."""
        client = self.identify_client(request.scope, read_headers(request.scope))
        balance = await self.service.read_balance(client)
        budget = Budget(
            client=client,
            granted=balance.granted / MICRO,
            spent=balance.spent / MICRO,
            left=balance.remaining / MICRO,
            delta=balance.delta,
        )
        return build_reply(budget.model_dump_json(by_alias=True))

    async def report_alive(self, _: Request) -> Response:
        """Report that the process lives."""
        return Response("ok\n", media_type="text/plain")

    async def report_ready(self, _: Request) -> Response:
        """Report whether queries are taken: not while draining, not after the ledger failed."""
        if not await self.service.check_ready():
            raise ProblemError(ProblemKind.BUSY, "Draining, or the ledger failed.", retry_after=5.0)
        return Response("ready\n", media_type="text/plain")

    async def send_metrics(self, _: Request) -> Response:
        """Give the numbers of the service, for Prometheus."""
        metrics, seconds = self.service.metrics, math.nan
        with suppress(RunError):  # the file of keys is damaged, as each request says
            seconds = self.service.keys.measure_expiry(time.time())
        metrics.key_expiry.set(seconds)
        text = generate_latest(metrics.registry)
        return Response(text, media_type="text/plain; version=0.0.4")


def explain_failure(error: Exception) -> Response:
    """Return a refusal, of the framework's too, as a problem; anything else is logged."""
    if isinstance(error, ProblemError):
        return error.to_response()
    if isinstance(error, HTTPException):
        kind = ProblemKind.METHOD if error.status_code == 405 else ProblemKind.NOT_FOUND
        response = ProblemError(kind, "See /openapi.json.").to_response()
        response.headers.update(error.headers or {})
        return response
    LOGGER.error("failed", exc_info=error)
    return ProblemError(ProblemKind.FAILED, "It is in the service's log.").to_response()


def build_reply(content: bytes | str, media_type: str = JSON_TYPE) -> Response:
    """Return a reply for one client."""
    return Response(content, 200, {"Cache-Control": "no-store"}, media_type)


def describe_refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the documentation of refusals."""
    content = {PROBLEM_MEDIA_TYPE: {"schema": ProblemBody.model_json_schema()}}
    by_status: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        titles = [kind.title for kind in ProblemKind if kind.status == status]
        by_status[status] = {"description": " ".join(titles), "content": content}
    return by_status


def read_headers(scope: Scope) -> dict[bytes, bytes]:
    """Return headers by their names in lower case; of one that comes twice the first counts.

    A third of the time that five look-ups in Starlette's take.
    """
    return dict(reversed(scope["headers"]))


async def parse_query(
    request: Request, headers: Mapping[bytes, bytes], client: str, service: Service
) -> Query:
    """Return a request's query, checked; ProblemError says what is wrong with it."""
    media_type = headers.get(b"content-type", b"").decode("latin-1")
    if media_type.partition(";")[0].strip().lower() != BINARY_TYPE:
        raise ProblemError(ProblemKind.MEDIA_TYPE, f"Send {BINARY_TYPE}.")
    service.check_version(headers.get(b"model-version", b"").decode("latin-1"))
    features = service.model.net.features
    body = await read_body(request.receive, 4 * features)
    uncertainty = "false"
    if request.scope["query_string"]:
        uncertainty = request.query_params.get("uncertainty", uncertainty)
    if uncertainty not in ("true", "false"):
        raise ProblemError(ProblemKind.INVALID, "uncertainty must be true or false.")
    name = headers.get(b"idempotency-key", b"").decode("latin-1")
    check_request_id(name)
    if len(body) != 4 * features:
        raise ProblemError(
            ProblemKind.INVALID,
            f"{len(body)} bytes, must be {4 * features}: {features} values of float32.",
        )
    values = np.frombuffer(body, "<f4")
    if not np.abs(values).max() <= MAX_VALUE:  # the largest of anything and NaN is NaN
        raise ProblemError(
            ProblemKind.INVALID, f"Values must be finite and within +-{MAX_VALUE:g}."
        )
    return Query(client, name, body, uncertainty == "true")


async def read_body(receive: Receive, limit: int) -> bytes:
    """Return the body; ProblemError when longer than `limit` or slower than 10 seconds.

    Starlette's own reader has neither limit.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ProblemError(
                        ProblemKind.TIMEOUT, "The connection closed before the body was whole."
                    )
                body += message.get("body", b"")
                if len(body) > limit:
                    raise ProblemError(ProblemKind.TOO_LARGE, f"At most {limit} bytes.")
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise ProblemError(
            ProblemKind.TIMEOUT, f"Send the body within {BODY_SECONDS:g} seconds."
        ) from None
