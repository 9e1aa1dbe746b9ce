"""Every way in which the service says no; RFC 9457 (application/problem+json)."""

from enum import Enum

from starlette.responses import JSONResponse

PROBLEM_MEDIA_TYPE = "application/problem+json"


class ProblemKind(Enum):
    """All of them; a kind's title is the same each time."""

    UNAUTHENTICATED = 401, "No key, or one that is not known."
    EXPIRED = 401, "The key has expired."
    BUDGET = 403, "The client's privacy budget is spent."
    MODEL_BUDGET = 403, "The model version's privacy budget is spent."
    UNKNOWN_CLIENT = 403, "The key's client has no account in the ledger."
    NOT_FOUND = 404, "There is nothing at this address."
    METHOD = 405, "The address does not take this method."
    TIMEOUT = 408, "The body did not arrive in time."
    REPLAYED = 409, "The request id was used with another message."
    MODEL_VERSION = 409, "Another model version is served."
    TOO_LARGE = 413, "The body is larger than a message."
    MEDIA_TYPE = 415, "The body's media type is not understood."
    INVALID = 422, "The question is not well formed."
    RATE = 429, "Too many questions a second."
    FAILED = 500, "The service failed."
    BUSY = 503, "The queue is full, or the service is about to end."
    LEDGER = 503, "The ledger cannot be written, so nothing is answered."

    def __init__(self, status: int, title: str) -> None:
        self.status = status
        self.title = title

    @property
    def urn(self) -> str:
        """Return the problem's `type`: the name in kebab-case."""
        return f"urn:fedcel:problem:{self.name.lower().replace('_', '-')}"


class ProblemError(Exception):
    """One refusal; `detail` never holds what was sent."""

    def __init__(
        self,
        kind: ProblemKind,
        detail: str,
        *,
        retry_after: float | None = None,
        remaining: float | None = None,
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.retry_after = retry_after
        self.remaining = remaining

    def to_response(self) -> JSONResponse:
        """Return the refusal as an HTTP response."""
        status = self.kind.status
        body: dict[str, object] = {
            "type": self.kind.urn,
            "title": self.kind.title,
            "status": status,
            "detail": self.detail,
        }
        if self.remaining is not None:
            body["left"] = self.remaining
        headers = {"Cache-Control": "no-store"}
        if self.retry_after is not None:
            headers["Retry-After"] = str(max(1, round(self.retry_after)))
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(body, status, headers, media_type=PROBLEM_MEDIA_TYPE)
