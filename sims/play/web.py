"""The playground over HTTP: one page and what it asks for, to this machine only."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from clients.service.app import JSON_TYPE, read_body
from clients.service.problems import ProblemError, ProblemKind
from sims.local_page import create_local_app, make_page
from sims.play.playground import Playground
from sims.play.playground import Request as PlayRequest

MAX_BODY = 8 * 2**20  # bytes of a picture, or of its pixels in JSON

Result = TypeVar("Result")


def create_app(playground: Playground, hosts: Sequence[str] | None) -> FastAPI:
    """Return the application of a playground, which is used in one thread, off the event loop.

    `hosts` are the names that a request may call this machine by, see `create_local_app`.
    """
    app = create_local_app("fedcel play", hosts)
    thread = ThreadPoolExecutor(1, "fedcel-play")

    async def compute(work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(thread, work)

    @app.get("/")
    async def send_page() -> Response:
        return make_page("play/playground.html.jinja", state=await compute(playground.describe))

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
