"""Every way in which the service says no; RFC 9457 (application/problem+json)."""

from enum import Enum
from typing import NamedTuple

from starlette.responses import JSONResponse

MEDIA = "application/problem+json"


class Kind(NamedTuple):
    """One kind of problem; its title is the same each time."""

    status: int
    title: str


class Kinds(Enum):
    """All of them; `type` is the name in kebab-case below `urn:fedcel:problem:`."""

    UNAUTHENTICATED = Kind(401, "No key, or one that is not known.")
    EXPIRED = Kind(401, "The key has expired.")
    BUDGET = Kind(403, "The client's privacy budget is spent.")
    MODEL_BUDGET = Kind(403, "The model version's privacy budget is spent.")
    UNKNOWN_CLIENT = Kind(403, "The key's client has no account in the ledger.")
    NOT_FOUND = Kind(404, "There is nothing at this address.")
    METHOD = Kind(405, "The address does not take this method.")
    TIMEOUT = Kind(408, "The body did not arrive in time.")
    REPLAYED = Kind(409, "The request id was used with another message.")
    MODEL_VERSION = Kind(409, "Another model version is served.")
    TOO_LARGE = Kind(413, "The body is larger than a message.")
    MEDIA_TYPE = Kind(415, "The body's media type is not understood.")
    INVALID = Kind(422, "The question is not well formed.")
    RATE = Kind(429, "Too many questions a second.")
    FAILED = Kind(500, "The service failed.")
    BUSY = Kind(503, "The queue is full, or the service is about to end.")
    LEDGER = Kind(503, "The ledger cannot be written, so nothing is answered.")


class ProblemError(Exception):
    """One refusal; `detail` never holds what was sent."""

    def __init__(
        self, kind: Kinds, detail: str, *, retry: float | None = None, left: float | None = None
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.retry = retry
        self.left = left

    def response(self) -> JSONResponse:
        """Return the refusal as an HTTP response."""
        status, title = self.kind.value
        name = self.kind.name.lower().replace("_", "-")
        body: dict[str, object] = {
            "type": f"urn:fedcel:problem:{name}",
            "title": title,
            "status": status,
            "detail": self.detail,
        }
        if self.left is not None:
            body["left"] = self.left
        headers = {"Cache-Control": "no-store"}
        if self.retry is not None:
            headers["Retry-After"] = str(max(1, round(self.retry)))
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(body, status, headers, media_type=MEDIA)
