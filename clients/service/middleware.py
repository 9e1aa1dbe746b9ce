"""Around every request: its time, its line in the log, and no traceback to the outside."""

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clients.service.problems import Kinds, ProblemError
from clients.service.state import Service

ROUTES = frozenset(
    {"/v1/query", "/v1/model", "/v1/encoder", "/v1/budget", "/healthz", "/readyz", "/metrics"}
)


class Watch:
    """Counts and logs requests; what fails unexpectedly is answered as a problem."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app = app
        self.service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on and note how it ended."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status = time.perf_counter(), 0
        about: dict[str, str] = {}
        scope["fedcel"] = about

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, noting)
        except Exception as error:
            self.service.log.error("failed", exc_info=error)
            if status == 0:
                answer = ProblemError(Kinds.FAILED, "It is in the service's log.").response()
                await answer(scope, receive, noting)
        route = scope["path"] if scope["path"] in ROUTES else "other"
        seconds = time.perf_counter() - begun
        self.service.metrics.request(route, status, seconds)
        line = {"route": route, "status": status, "ms": round(1000 * seconds, 2), **about}
        self.service.log.info("request", extra=line)
