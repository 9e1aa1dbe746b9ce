"""The playground over HTTP: one page and what it asks for, to this machine alone."""

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import urlsplit

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import ValidationError
from starlette.middleware.base import RequestResponseEndpoint

from clients.service.problems import ProblemError, ProblemKind
from clients.service.query import JSON_TYPE, read_body
from fedcel.errors import FedcelError
from sims.play.playground import Playground
from sims.play.playground import Request as PlayRequest
from sims.report.templates import render_template

MAX_BODY = 8 * 2**20  # bytes of a picture, or of its pixels in JSON
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

Result = TypeVar("Result")


def create_app(playground: Playground, hosts: Sequence[str] | None) -> FastAPI:
    """Return the application.

    Args:
        playground: What it shows; used in one thread alone, off the event loop.
        hosts: Names that a request may call this machine by, without a port; None: any. Others are
            refused, so that no page elsewhere reads what is here under a name of its own.

    Returns:
        The application.
    """
    app = FastAPI(title="fedcel play", docs_url=None, redoc_url=None, openapi_url=None)
    thread = ThreadPoolExecutor(1, "fedcel-play")

    async def compute(work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(thread, work)

    @app.middleware("http")
    async def check_host(request: Request, call_next: RequestResponseEndpoint) -> Response:
        refusal = refuse_host(request, hosts)
        response = refuse(421, refusal) if refusal else await call_next(request)
        response.headers.update(HEADERS)
        return response

    @app.exception_handler(ProblemError)
    async def handle_problem(_: Request, error: ProblemError) -> Response:
        return error.to_response()

    @app.exception_handler(FedcelError)
    async def handle_refusal(_: Request, error: FedcelError) -> Response:
        return ProblemError(ProblemKind.INVALID, str(error)).to_response()

    @app.get("/")
    async def send_page() -> Response:
        nonce = secrets.token_urlsafe(16)
        state = await compute(playground.describe)
        page = render_template("playground.html.jinja", state=state, nonce=nonce)
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; "
            "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'"
        )
        return HTMLResponse(page, headers={"Content-Security-Policy": policy})

    @app.get("/api/state")
    async def send_state() -> dict[str, Any]:
        return await compute(playground.describe)

    @app.post("/api/look")
    async def look(request: Request) -> Response:
        question = await read_request(request)
        start = time.perf_counter()
        body = await compute(lambda: playground.look(question))
        body["milliseconds"] = round(1000 * (time.perf_counter() - start), 1)
        return JSONResponse(body)

    @app.post("/api/ask")
    async def ask(request: Request) -> Response:
        question = await read_request(request)
        return JSONResponse({"columns": await compute(lambda: playground.ask(question))})

    @app.post("/api/budget")
    async def start_again(request: Request) -> Response:
        await read_body(request.receive, 0)
        await compute(playground.start_again)
        return Response(status_code=204)

    @app.post("/api/picture")
    async def read_picture(request: Request) -> Response:
        data = await read_body(request.receive, MAX_BODY)
        return JSONResponse(await compute(lambda: playground.read_picture(data)))

    return app


def refuse_host(request: Request, hosts: Sequence[str] | None) -> str | None:
    """Return why a request is not answered; None where it comes from this machine's own page."""
    host = request.headers.get("host", "")
    if hosts is not None and name_of(host) not in hosts:
        return (
            f"This playground answers to {', '.join(hosts)} only, not to the name that was asked "
            "for; open the address that it printed."
        )
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != host:
        return "This question comes from another page; open the address that was printed."
    return None


def name_of(host: str) -> str:
    """Return the name in a Host header, without its port."""
    name = host.rpartition("]")[0][1:] if host.startswith("[") else host.partition(":")[0]
    return name.lower()


def refuse(status: int, detail: str) -> Response:
    """Return a refusal in words."""
    return JSONResponse({"title": "Refused.", "status": status, "detail": detail}, status)


async def read_request(request: Request) -> PlayRequest:
    """Return what a page asks; ProblemError says what is wrong with it."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON_TYPE:
        raise ProblemError(ProblemKind.MEDIA_TYPE, f"Send {JSON_TYPE}.")
    body = await read_body(request.receive, MAX_BODY)
    try:
        return PlayRequest.model_validate(json.loads(body))
    except (UnicodeDecodeError, RecursionError, json.JSONDecodeError):
        raise ProblemError(ProblemKind.INVALID, "The body is no JSON.") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = ".".join(map(str, first["loc"])) or "the body"
        raise ProblemError(ProblemKind.INVALID, f"{name}: {first['msg']}") from None
