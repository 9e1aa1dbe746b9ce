"""A page over HTTP for people at this machine: who is answered, and what a browser may load."""

import secrets
from collections.abc import Sequence
from urllib.parse import urlsplit

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.middleware.base import RequestResponseEndpoint

from clients.service.problems import ProblemError, ProblemKind
from fedcel.errors import FedcelError
from sims.report.templates import render_template

HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
POLICY = (
    "default-src 'none'; script-src {script}; style-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'"
)


def create_local_app(title: str, hosts: Sequence[str] | None) -> FastAPI:
    """Return an application without pages, which refuses whoever is not this machine's own page.

    `hosts` are the names that a request may call this machine by, without a port; None: any. Others
    are refused, so that no page elsewhere reads what is here under a name of its own.
    """
    app = FastAPI(title=title, docs_url=None, redoc_url=None, openapi_url=None)

    @app.middleware("http")
    async def check_host(request: Request, call_next: RequestResponseEndpoint) -> Response:
        refusal = refuse_host(request, hosts)
        response = (
            JSONResponse({"title": "Refused.", "status": 421, "detail": refusal}, 421)
            if refusal
            else await call_next(request)
        )
        response.headers.update(HEADERS)
        return response

    @app.exception_handler(ProblemError)
    async def handle_problem(_: Request, error: ProblemError) -> Response:
        return error.to_response()

    @app.exception_handler(FedcelError)
    async def handle_refusal(_: Request, error: FedcelError) -> Response:
        return ProblemError(ProblemKind.INVALID, str(error)).to_response()

    return app


def make_page(template: str, **values: object) -> HTMLResponse:
    """Return a page that loads nothing, and runs only the script with the template's `nonce`."""
    nonce = secrets.token_urlsafe(16)
    page = render_template(template, nonce=nonce, **values)
    policy = POLICY.format(script=f"'nonce-{nonce}'")
    return HTMLResponse(page, headers={"Content-Security-Policy": policy})


def refuse_host(request: Request, hosts: Sequence[str] | None) -> str | None:
    """Return why a request is not answered; None where it comes from this machine's own page."""
    host = request.headers.get("host", "")
    if hosts is not None and name_of(host) not in hosts:
        return (
            f"This page answers to {', '.join(hosts)} only, not to the name that was asked for; "
            "open the address that was printed."
        )
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != host:
        return "This question comes from another page; open the address that was printed."
    return None


def name_of(host: str) -> str:
    """Return the name in a Host header, without its port."""
    name = host.rpartition("]")[0][1:] if host.startswith("[") else host.partition(":")[0]
    return name.lower()
