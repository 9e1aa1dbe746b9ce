"""A query out of a request: bytes or JSON, checked before anything reads it.

On the hot path: plain ASGI, no framework between.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl

import numpy as np
from pydantic import ValidationError
from starlette.types import Receive, Scope

from clients.service.answering import Query
from clients.service.model import ServedModel
from clients.service.problems import ProblemError, ProblemKind
from clients.service_messages import MAX_VALUE, REQUEST_ID_PATTERN, Question

BINARY_TYPE = "application/octet-stream"
JSON_TYPE = "application/json"
BODY_SECONDS = 10.0
JSON_VALUE_BYTES = 32  # allowed for one value
JSON_OTHER_BYTES = 4096  # allowed for all else
REQUEST_ID = re.compile(REQUEST_ID_PATTERN)
NO_MODELS: Mapping[str, ServedModel] = {}


class RequestHead(NamedTuple):
    """Headers and query of a request; of a header that comes twice the first counts."""

    headers: dict[bytes, bytes]
    query_string: bytes

    @classmethod
    def of(cls, scope: Scope) -> "RequestHead":
        """Return the head of an ASGI request, whose names of headers are in lower case."""
        return cls(dict(reversed(scope["headers"])), scope["query_string"])

    def get(self, name: bytes) -> str:
        """Return a header, empty where there is none."""
        return self.headers.get(name, b"").decode("latin-1")


async def parse_query(
    head: RequestHead,
    receive: Receive,
    client: str,
    model: ServedModel,
    *,
    older: Mapping[str, ServedModel] = NO_MODELS,
) -> Query:
    """Return the query of a request; ProblemError says what is wrong with it.

    `older`: replaced models that are still answered, by version.
    """
    media_type = head.get(b"content-type").partition(";")[0].strip().lower()
    if media_type == BINARY_TYPE:
        model = choose_model(head.get(b"model-version"), model, older)
        body = await read_body(receive, 4 * model.net.features)
        return parse_binary_query(head, body, client, model)
    if media_type == JSON_TYPE:
        features = max(served.net.features for served in (model, *older.values()))
        body = await read_body(receive, JSON_VALUE_BYTES * features + JSON_OTHER_BYTES)
        return parse_json_query(head, body, client, model, older=older)
    raise ProblemError(ProblemKind.MEDIA_TYPE, f"Send {BINARY_TYPE} or {JSON_TYPE}.")


async def read_body(receive: Receive, limit: int) -> bytes:
    """Return the body; ProblemError when longer than `limit` or slower than 10 seconds."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ProblemError(
                        ProblemKind.TIMEOUT, "The connection closed before the body was whole."
                    )
                part: bytes = message.get("body", b"")
                body += part
                if len(body) > limit:
                    raise ProblemError(ProblemKind.TOO_LARGE, f"At most {limit} bytes.")
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise ProblemError(
            ProblemKind.TIMEOUT, f"Send the body within {BODY_SECONDS:g} seconds."
        ) from None


def parse_binary_query(head: RequestHead, body: bytes, client: str, model: ServedModel) -> Query:
    """Return the query of D float32 values, little-endian, and two headers."""
    wants_uncertainty = read_wants_uncertainty(head)
    request_id = head.get(b"idempotency-key")
    if not REQUEST_ID.fullmatch(request_id):
        raise ProblemError(
            ProblemKind.INVALID, f"Send a header Idempotency-Key that matches {REQUEST_ID_PATTERN}."
        )
    features = model.net.features
    if len(body) != 4 * features:
        raise ProblemError(
            ProblemKind.INVALID,
            f"{len(body)} bytes, must be {4 * features}: {features} values of float32, "
            "little-endian.",
        )
    check_values(np.frombuffer(body, "<f4"))
    return Query(client, request_id, body, wants_uncertainty, model.version)


def parse_json_query(
    head: RequestHead,
    body: bytes,
    client: str,
    model: ServedModel,
    *,
    older: Mapping[str, ServedModel] = NO_MODELS,
) -> Query:
    """Return the query of a JSON body; the body or the address ask for uncertainty."""
    wants_uncertainty = read_wants_uncertainty(head)
    try:
        question = Question.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        field = first["loc"][0] if first["loc"] else "the body"
        named = field if field in (*Question.model_fields, "the body") else "an unknown field"
        # Only what the schema names: pydantic's full text may repeat what was sent.
        raise ProblemError(ProblemKind.INVALID, f"Wrong in {named}: {first['type']}.") from None
    model = choose_model(question.model, model, older)
    if len(question.message) != model.net.features:
        raise ProblemError(
            ProblemKind.INVALID, f"{len(question.message)} values, must be {model.net.features}."
        )
    values = np.asarray(question.message, "<f4")
    check_values(values)
    wants_uncertainty = wants_uncertainty or question.uncertainty
    return Query(client, question.request, values.tobytes(), wants_uncertainty, model.version)


def read_wants_uncertainty(head: RequestHead) -> bool:
    """Return whether uncertainty is asked for in the address."""
    if not head.query_string:
        return False
    pairs = parse_qsl(head.query_string.decode("latin-1"), keep_blank_values=True)
    text = dict(pairs).get("uncertainty", "false")
    if text not in ("true", "false"):
        raise ProblemError(ProblemKind.INVALID, "uncertainty must be true or false.")
    return text == "true"


def choose_model(version: str, model: ServedModel, older: Mapping[str, ServedModel]) -> ServedModel:
    """Return the model that a message is for; ProblemError where it is not served."""
    chosen = older.get(version, model)
    if version != chosen.version:
        raise ProblemError(
            ProblemKind.MODEL_VERSION,
            f"Model {model.version} is served: fetch /v1/model and /v1/encoder, encode anew.",
        )
    return chosen


def check_values(values: np.ndarray) -> None:
    """Refuse values that no encoder sends: ProblemError."""
    if not np.abs(values).max() <= MAX_VALUE:  # the largest of anything and NaN is NaN
        raise ProblemError(
            ProblemKind.INVALID, f"Values must be finite and within +-{MAX_VALUE:g}."
        )
