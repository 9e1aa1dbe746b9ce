"""The HTTP service: private answers to smashed data.

The answers protect the INPUT of a query against the reader of the answer, per query; the images
that the model was trained on are not protected by them, and answers add up. The service itself
reads the messages: what they tell of an image is up to encoder and noise at the cut.
"""

import asyncio
import logging
import math
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import numpy as np
from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clients.service.access import StoredKey, describe_end
from clients.service.answering import Query
from clients.service.monitoring import LOGGER, Metrics
from clients.service.problems import PROBLEM_MEDIA_TYPE, ProblemError, ProblemKind
from clients.service.service import Service
from clients.service.telemetry import Telemetry
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
    Question,
)
from fedcel.privacy.ledger import MICRO

BINARY_TYPE = "application/octet-stream"
JSON_TYPE = "application/json"
ANSWER_HEADERS = ((b"content-type", JSON_TYPE.encode()), (b"cache-control", b"no-store"))
BODY_SECONDS = 10.0
JSON_VALUE_BYTES = 32  # allowed for one value
JSON_OTHER_BYTES = 4096  # allowed for all else
REQUEST_ID = re.compile(REQUEST_ID_PATTERN)
KEY = Depends(HTTPBearer(scheme_name="key", auto_error=False))  # for the document alone
QUERY_DOCUMENTATION: dict[str, Any] = {
    "parameters": [
        {
            "name": name,
            "in": "header",
            "required": False,
            "description": f"With {BINARY_TYPE}.",
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
            JSON_TYPE: {"schema": Question.model_json_schema()},
        },
    },
}
PATHS = frozenset({QUERY_PATH, *READ_PATHS, "/healthz", "/readyz", "/metrics"})


class ExactRoute(APIRoute):
    """A route of one path: the framework's pattern of `/v1/model` takes `/v1/model%0A`, too."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match a request."""
        return super().matches(scope) if scope["path"] == self.path else (Match.NONE, {})


class QueryRoute(ExactRoute):
    """The declared route of queries, which needs none of the framework's layers around it.

    They cost more than all the privacy.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a query."""
        if scope["method"] != "POST":
            return await super().handle(scope, receive, send)
        try:
            response: Response = await self.endpoint(Request(scope, receive))
        except ProblemError as problem:
            response = problem.to_response()
        return await response(scope, receive, send)


class AnswerResponse(Response):
    """A private answer, whose headers are not encoded once more for each."""

    def __init__(self, body: bytes) -> None:
        self.status_code, self.background, self.body = 200, None, body
        self.raw_headers = [*ANSWER_HEADERS, (b"content-length", b"%d" % len(body))]


class RequestMonitor:
    """Counts and logs requests; what fails unexpectedly is answered as a problem.

    Args:
        app: The application.
        metrics: What counts its requests.
        query: Its route of queries, which gets them at once.
        observe: Who else is told of each request: method, path, status, seconds.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        query: QueryRoute,
        observe: Callable[[str, str, int, float], None] | None,
    ) -> None:
        self.app = app
        self.metrics = metrics
        self.query = query
        self.observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on and note how it ended."""
        if scope["type"] != "http":
            await self.app(scope, receive, partial(send_without_words, send))
            return
        start = time.perf_counter()
        path, method, status = scope["path"], scope["method"], 0
        log_fields: dict[str, str] = {}
        scope["fedcel"] = log_fields

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        app = self.query.handle if (path, method) == (QUERY_PATH, "POST") else self.app
        try:
            await app(scope, receive, send_and_note)
        except Exception as error:
            LOGGER.error("failed", exc_info=error)
            if status == 0:
                problem = ProblemError(ProblemKind.FAILED, "It is in the service's log.")
                await problem.to_response()(scope, receive, send_and_note)
        route = path if path in PATHS else "other"
        seconds = time.perf_counter() - start
        self.metrics.observe_request(route, status, seconds)
        if self.observe is not None:
            self.observe(method, route, status, seconds)
        if LOGGER.isEnabledFor(logging.INFO):
            line = {"route": route, "status": status, "ms": round(1000 * seconds, 2), **log_fields}
            LOGGER.info("request", extra=line)


async def send_without_words(send: Send, message: Message) -> None:
    """Pass on how the start or the end went, without the traceback of a failure.

    The service logs the failure itself; the web server would log the text once more.
    """
    await send({name: value for name, value in message.items() if name != "message"})


def create_app(service: Service, telemetry: Telemetry | None = None) -> FastAPI:
    """Return the application; its service starts and ends with it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        yield
        await service.end()

    app = FastAPI(title="fedcel", version="1", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.service = service
    app.add_exception_handler(ProblemError, handle_problem)
    app.add_exception_handler(HTTPException, handle_http_error)
    query = QueryRoute(
        QUERY_PATH,
        answer_query,
        name="query",
        methods=["POST"],
        response_model=Answer,
        dependencies=[KEY],
        responses=describe_refusals(401, 403, 408, 409, 413, 415, 422, 429, 500, 503),
        openapi_extra=QUERY_DOCUMENTATION,
    )
    app.router.routes.append(query)
    app.router.route_class = ExactRoute
    for path, handler, response_class, statuses in (
        ("/v1/model", describe_model, JSONResponse, (401, 429)),
        ("/v1/encoder", send_encoder, Response, (401, 429)),
        ("/v1/budget", read_budget, JSONResponse, (401, 429, 503)),
        ("/healthz", report_alive, Response, (503,)),
        ("/readyz", report_ready, Response, (503,)),
        ("/metrics", send_metrics, Response, (503,)),
    ):
        app.get(
            path,
            name=path.rpartition("/")[2],
            response_class=response_class,
            dependencies=[KEY] if path in READ_PATHS else None,
            responses=describe_refusals(*statuses),
        )(handler)
    observe = telemetry.observe_request if telemetry else None
    app.add_middleware(RequestMonitor, metrics=service.metrics, query=query, observe=observe)
    return app


def describe_refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the documentation of refusals."""
    content = {PROBLEM_MEDIA_TYPE: {"schema": ProblemBody.model_json_schema()}}
    by_status: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        titles = [kind.title for kind in ProblemKind if kind.status == status]
        by_status[status] = {"description": " ".join(titles), "content": content}
    return by_status


def find_service(request: Request) -> Service:
    """Return the service behind a request."""
    service: Service = request.app.state.service
    return service


def read_headers(scope: Scope) -> dict[bytes, bytes]:
    """Return headers by their names in lower case; of one that comes twice the first counts.

    A third of the time that five look-ups in Starlette's take.
    """
    return dict(reversed(scope["headers"]))


def identify_client(
    request: Request, service: Service, headers: dict[bytes, bytes] | None = None
) -> StoredKey:
    """Return the key that a request shows; ProblemError where it has none, or asks too often."""
    scope = request.scope
    headers = read_headers(scope) if headers is None else headers
    key = service.keys.authenticate(headers.get(b"authorization", b"").decode("latin-1"))
    service.rates[scope["path"]].check(key.client)
    scope["fedcel"]["client"] = key.client
    return key


# The OpenAPI document describes each route with the docstring of its handler.


async def answer_query(request: Request) -> Response:
    """Answer one message, privately, for its price; the same message again is free."""
    service = find_service(request)
    headers = read_headers(request.scope)
    key = identify_client(request, service, headers)
    query = await parse_query(request, headers, key.client, service)
    request.scope["fedcel"]["request"] = query.request
    answer = await service.answer(query)
    response = AnswerResponse(answer.to_json())
    if key.expires is not None:
        response.headers.update(describe_end(key, time.time()))
    return response


async def describe_model(request: Request, response: Response) -> ModelCard:
    """Say what is served and what it costs."""
    service = find_service(request)
    response.headers.update(describe_end(identify_client(request, service), time.time()))
    return service.model_card


async def send_encoder(request: Request) -> Response:
    """Give the device's half: safetensors, its settings in the metadata."""
    service = find_service(request)
    headers = describe_end(identify_client(request, service), time.time())
    return Response(service.model.encoder, 200, headers, BINARY_TYPE)


async def read_budget(request: Request, response: Response) -> Budget:
    """Say what the asking client has left."""
    service = find_service(request)
    key = identify_client(request, service)
    response.headers.update(describe_end(key, time.time()))
    balance = await service.read_balance(key.client)
    return Budget(
        client=key.client,
        granted=balance.granted / MICRO,
        spent=balance.spent / MICRO,
        left=balance.remaining / MICRO,
        delta=balance.delta,
    )


async def report_alive() -> Response:
    """Say that the process lives."""
    return Response("ok\n", media_type="text/plain")


async def report_ready(request: Request) -> Response:
    """Say whether queries are taken: not while draining, not after the ledger failed."""
    if not await find_service(request).check_ready():
        raise ProblemError(ProblemKind.BUSY, "Draining, or the ledger failed.", retry_after=5.0)
    return Response("ready\n", media_type="text/plain")


async def send_metrics(request: Request) -> Response:
    """Give the numbers of the service, for Prometheus."""
    service = find_service(request)
    expiry = service.find_ending_keys()
    service.metrics.key_expiry.set(expiry.seconds if expiry else math.nan)
    service.metrics.keys_expiring.set(len(expiry.soon) if expiry else math.nan)
    return Response(service.metrics.to_text(), media_type="text/plain; version=0.0.4")


async def handle_problem(request: Request, error: Exception) -> Response:
    """Return a refusal."""
    assert isinstance(error, ProblemError)
    return error.to_response()


async def handle_http_error(request: Request, error: Exception) -> Response:
    """Return what the framework refuses, in the same form."""
    assert isinstance(error, HTTPException)
    kind = ProblemKind.METHOD if error.status_code == 405 else ProblemKind.NOT_FOUND
    response = ProblemError(kind, "See /openapi.json.").to_response()
    response.headers.update(error.headers or {})
    return response


async def parse_query(
    request: Request, headers: Mapping[bytes, bytes], client: str, service: Service
) -> Query:
    """Return a request's query, checked; ProblemError says what is wrong with it."""
    media_type = headers.get(b"content-type", b"").decode("latin-1")
    media_type = media_type.partition(";")[0].strip().lower()
    if media_type == BINARY_TYPE:
        model = service.find_model(headers.get(b"model-version", b"").decode("latin-1"))
        size = 4 * model.net.features
        body = await read_body(request.receive, size)
        wants_uncertainty = read_wants_uncertainty(request)
        name = headers.get(b"idempotency-key", b"").decode("latin-1")
        if not REQUEST_ID.fullmatch(name):
            raise ProblemError(
                ProblemKind.INVALID,
                f"Send a header Idempotency-Key that matches {REQUEST_ID_PATTERN}.",
            )
        if len(body) != size:
            raise ProblemError(
                ProblemKind.INVALID,
                f"{len(body)} bytes, must be {size}: {size // 4} values of float32, little-endian.",
            )
        check_values(np.frombuffer(body, "<f4"))
        return Query(client, name, body, wants_uncertainty, model.version)
    if media_type != JSON_TYPE:
        raise ProblemError(ProblemKind.MEDIA_TYPE, f"Send {BINARY_TYPE} or {JSON_TYPE}.")
    features = max(offer.model.net.features for offer in service.versions.values())
    body = await read_body(request.receive, JSON_VALUE_BYTES * features + JSON_OTHER_BYTES)
    wants_uncertainty = read_wants_uncertainty(request)
    question = parse_question(body)
    model = service.find_model(question.model)
    if len(question.message) != model.net.features:
        raise ProblemError(
            ProblemKind.INVALID, f"{len(question.message)} values, must be {model.net.features}."
        )
    values = np.asarray(question.message, "<f4")
    check_values(values)
    wants_uncertainty = wants_uncertainty or question.uncertainty
    return Query(client, question.request, values.tobytes(), wants_uncertainty, model.version)


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


def parse_question(body: bytes) -> Question:
    """Return the question of a JSON body; ProblemError names only what the schema names."""
    try:
        return Question.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        field = first["loc"][0] if first["loc"] else "the body"
        named = field if field in (*Question.model_fields, "the body") else "an unknown field"
        # pydantic's full text may repeat what was sent
        raise ProblemError(ProblemKind.INVALID, f"Wrong in {named}: {first['type']}.") from None


def read_wants_uncertainty(request: Request) -> bool:
    """Whether the address asks for uncertainty; ProblemError where it says neither."""
    if not request.scope["query_string"]:
        return False
    text = request.query_params.get("uncertainty", "false")
    if text not in ("true", "false"):
        raise ProblemError(ProblemKind.INVALID, "uncertainty must be true or false.")
    return text == "true"


def check_values(values: np.ndarray) -> None:
    """Refuse values that no encoder sends: ProblemError."""
    if not np.abs(values).max() <= MAX_VALUE:  # the largest of anything and NaN is NaN
        raise ProblemError(
            ProblemKind.INVALID, f"Values must be finite and within +-{MAX_VALUE:g}."
        )
