"""The HTTP service: private answers to smashed data.

The answers protect the INPUT of a question against whoever reads the answer, per question; the
images that the model was trained on are not protected by them, and answers add up. The service
itself reads the messages: what they tell of an image is up to encoder and noise at the cut.
"""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from clients.service import schema
from clients.service.answering import list_prices
from clients.service.body import BINARY, JSON, parse_query
from clients.service.middleware import Watch
from clients.service.problems import MEDIA, Kinds, ProblemError
from clients.service.state import Service
from fedcel.privacy.ledger import MICRO

KEY: dict[str, Any] = {"security": [{"key": []}]}
QUESTION: dict[str, Any] = {
    "parameters": [
        {
            "name": name,
            "in": "header",
            "required": False,
            "description": f"With {BINARY}.",
            "schema": {"type": "string", "pattern": pattern},
        }
        for name, pattern in (
            ("Idempotency-Key", schema.REQUEST_ID),
            ("Model-Version", schema.VERSION),
        )
    ]
    + [{"name": "uncertainty", "in": "query", "schema": {"type": "boolean", "default": False}}],
    "requestBody": {
        "required": True,
        "content": {
            BINARY: {
                "schema": {
                    "type": "string",
                    "format": "binary",
                    "description": "D values of float32, little-endian.",
                }
            },
            JSON: {"schema": schema.Question.model_json_schema()},
        },
    },
}


def create_app(service: Service) -> FastAPI:
    """Return the application; its service starts and ends with it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        yield
        await service.end()

    app = FastAPI(title="fedcel", version="1", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.service = service
    app.add_middleware(Watch, service=service)
    app.add_exception_handler(ProblemError, handle_problem)
    app.add_exception_handler(HTTPException, handle_http_error)
    app.router.add_api_route(
        "/v1/query",
        query,
        methods=["POST"],
        response_model=schema.Answer,
        responses=describe_refusals(401, 403, 408, 409, 413, 415, 422, 429, 500, 503),
        openapi_extra=KEY | QUESTION,
        route_class_override=Direct,
    )
    app.get("/v1/model", responses=describe_refusals(401, 429), openapi_extra=KEY)(model)
    app.get(
        "/v1/encoder",
        response_class=Response,
        responses=describe_refusals(401, 429),
        openapi_extra=KEY,
    )(encoder)
    app.get("/v1/budget", responses=describe_refusals(401, 429, 503), openapi_extra=KEY)(budget)
    for path, handler in (("/healthz", healthz), ("/readyz", readyz), ("/metrics", metrics)):
        app.get(path, response_class=Response, responses=describe_refusals(503))(handler)
    document_api_key(app)
    return app


class Direct(APIRoute):
    """A documented route that hands the request over as it is; the framework's parsing costs."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the endpoint itself."""
        endpoint: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return endpoint


def describe_refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the documentation of refusals."""
    content = {MEDIA: {"schema": schema.ProblemBody.model_json_schema()}}
    by_status: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        titles = [kind.value.title for kind in Kinds if kind.value.status == status]
        by_status[status] = {"description": " ".join(titles), "content": content}
    return by_status


def document_api_key(app: FastAPI) -> None:
    """Add the key to the OpenAPI document."""
    document = app.openapi()
    document.setdefault("components", {})["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer"}
    }


def find_service(request: Request) -> Service:
    """Return the service behind a request."""
    found: Service = request.app.state.service
    return found


def identify_client(request: Request) -> str:
    """Return the client that a request's key belongs to; ProblemError where it has none."""
    found = find_service(request).known(request.headers.get("authorization"))
    request.scope["fedcel"]["client"] = found.client
    return found.client


async def query(request: Request) -> Response:
    """Answer one message, privately, for its price; the same message again is free."""
    service = find_service(request)
    ask = await parse_query(request, identify_client(request), service.served)
    request.scope["fedcel"]["request"] = ask.request
    found = await service.ask(ask)
    # The stored part is JSON already; an answer is never built twice.
    rest = f', "fresh": {str(found.fresh).lower()}, "left": {found.left / MICRO}}}'
    body = found.body[:-1] + rest.encode()
    return Response(body, 200, {"Cache-Control": "no-store"}, JSON)


async def model(request: Request) -> schema.ModelCard:
    """Say what is served and what it costs."""
    identify_client(request)
    service = find_service(request)
    served, mechanism = service.served, service.mechanism
    price = list_prices(mechanism)
    return schema.ModelCard(
        model=served.version,
        shape=list(served.shape),
        features=served.net.features,
        classes=served.classes,
        samples=served.samples,
        sigma=served.net.cut.sigma,
        dropout=served.net.cut.dropout,
        largest=schema.LARGEST,
        mechanism=mechanism.name,
        clip=served.privacy.clip,
        clip_kind=served.privacy.clip_kind,
        epsilon=mechanism.epsilon,
        delta=mechanism.delta,
        price=schema.PriceCard(answer=price.answer / MICRO, uncertainty=price.uncertainty / MICRO),
        encoder=schema.EncoderCard(
            url="/v1/encoder",
            sha256=sha256(served.encoder).hexdigest(),
            bytes=len(served.encoder),
        ),
    )


async def encoder(request: Request) -> Response:
    """Give the device's half: safetensors, its settings in the metadata."""
    identify_client(request)
    return Response(find_service(request).served.encoder, media_type=BINARY)


async def budget(request: Request) -> schema.Budget:
    """Say what the asking client has left."""
    client = identify_client(request)
    found = await find_service(request).balance(client)
    return schema.Budget(
        client=client,
        granted=found.granted / MICRO,
        spent=found.spent / MICRO,
        left=found.remaining / MICRO,
        delta=found.delta,
    )


async def healthz(request: Request) -> Response:
    """Say that the process lives."""
    return Response("ok\n", media_type="text/plain")


async def readyz(request: Request) -> Response:
    """Say whether questions are taken: not while draining, not after the ledger failed."""
    if not await find_service(request).recovered():
        raise ProblemError(Kinds.BUSY, "Draining, or the ledger failed.", retry=5.0)
    return Response("ready\n", media_type="text/plain")


async def metrics(request: Request) -> Response:
    """Give the numbers of the service, for Prometheus."""
    return Response(find_service(request).metrics.text(), media_type="text/plain; version=0.0.4")


async def handle_problem(request: Request, error: Exception) -> JSONResponse:
    """Return a refusal."""
    assert isinstance(error, ProblemError)
    return error.response()


async def handle_http_error(request: Request, error: Exception) -> JSONResponse:
    """Return what the framework refuses, in the same form."""
    assert isinstance(error, HTTPException)
    kind = Kinds.METHOD if error.status_code == 405 else Kinds.NOT_FOUND
    found = ProblemError(kind, "See /openapi.json.").response()
    found.headers.update(error.headers or {})
    return found
