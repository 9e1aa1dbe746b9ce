"""Refusals of the service, as RFC 9457 has them (application/problem+json).

No library that is installed has them: FastAPI's `HTTPException` knows neither type nor title.
"""

from enum import Enum
from pathlib import Path
from traceback import walk_tb
from types import TracebackType
from typing import TYPE_CHECKING

from fedcel.privacy.ledger import MICRO, Refusal

if TYPE_CHECKING:  # a layer without a web framework refuses, too
    from starlette.responses import Response

PROBLEM_MEDIA_TYPE = "application/problem+json"


class ProblemKind(Enum):
    """Kinds of refusals, each with its status and title."""

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


PROBLEM_OF_REFUSAL = {
    "budget": (ProblemKind.BUDGET, "Ask the operator to top up the client's budget."),
    "delta": (
        ProblemKind.BUDGET,
        "The deltas of the answers add up to 1 %: use another client or model.",
    ),
    "undefined": (ProblemKind.INVALID, "The model has no finite answer to this message."),
    "model-budget": (ProblemKind.MODEL_BUDGET, "This model version answers no more questions."),
    "unknown-client": (ProblemKind.UNKNOWN_CLIENT, "Ask the operator to grant a budget."),
    "replayed": (ProblemKind.REPLAYED, "Send a new request id."),
}


class ProblemError(Exception):
    """One refusal; `detail` never holds what was sent.

    Attributes:
        kind: Its kind.
        detail: What to do about it.
        retry_after: Seconds to wait before asking again, where that helps.
        remaining: Epsilon that is left, where the refusal is about a budget.
    """

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

    @property
    def status(self) -> int:
        """Return the HTTP status."""
        return self.kind.status

    def to_response(self) -> "Response":
        """Return the refusal as a response of Starlette."""
        from starlette.responses import JSONResponse

        body = {
            "type": self.kind.urn,
            "title": self.kind.title,
            "status": self.status,
            "detail": self.detail,
        }
        headers = {"Cache-Control": "no-store"}
        if self.remaining is not None:
            body["left"] = self.remaining
        if self.retry_after is not None:
            headers["Retry-After"] = str(max(1, round(self.retry_after)))
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(body, self.status, headers, PROBLEM_MEDIA_TYPE)


def explain_refusal(refusal: Refusal) -> ProblemError:
    """Return the problem of a query for which the ledger refused to pay."""
    kind, detail = PROBLEM_OF_REFUSAL[refusal.reason]
    remaining = None if refusal.remaining is None else refusal.remaining / MICRO
    return ProblemError(kind, detail, remaining=remaining)


def describe_place(error: Exception) -> str:
    """Return an error's type and where it arose: its words may repeat what was sent."""
    return f"{type(error).__name__} at {', '.join(list_frames(error.__traceback__))}"


def list_frames(trace: TracebackType | None) -> list[str]:
    """Return file and line of each frame."""
    return [f"{Path(frame.f_code.co_filename).name}:{line}" for frame, line in walk_tb(trace)]
