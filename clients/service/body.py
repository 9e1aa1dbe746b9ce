"""A question out of a request: bytes or JSON, checked before anything reads it."""

import asyncio
import re

import numpy as np
from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request

from clients.service.answering import Query
from clients.service.model import ServedModel
from clients.service.problems import Kinds, ProblemError
from clients.service.schema import LARGEST, REQUEST_ID, Question

BINARY = "application/octet-stream"
JSON = "application/json"
SECONDS = 10.0  # for a body to arrive
JSON_VALUE, JSON_REST = 32, 4096  # bytes allowed for one value, and for all else


async def parse_query(request: Request, client: str, served: ServedModel) -> Query:
    """Return the question that a request asks; ProblemError says what is wrong with it."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    features = served.net.features
    if kind == BINARY:
        data = await read_body(request, 4 * features)
        name = request.headers.get("idempotency-key", "")
        version = request.headers.get("model-version", "")
        return parse_binary_query(client, name, version, data, wants_uncertainty(request), served)
    if kind == JSON:
        data = await read_body(request, JSON_VALUE * features + JSON_REST)
        return parse_json_query(client, data, wants_uncertainty(request), served)
    raise ProblemError(Kinds.MEDIA_TYPE, f"Send {BINARY} or {JSON}.")


async def read_body(request: Request, limit: int) -> bytes:
    """Return the body; ProblemError when longer than `limit` or slower than 10 seconds."""
    found = bytearray()
    try:
        async with asyncio.timeout(SECONDS):
            async for part in request.stream():
                found += part
                if len(found) > limit:
                    raise ProblemError(Kinds.TOO_LARGE, f"At most {limit} bytes.")
    except TimeoutError:
        raise ProblemError(Kinds.TIMEOUT, f"Send the body within {SECONDS:g} seconds.") from None
    except ClientDisconnect:
        raise ProblemError(
            Kinds.TIMEOUT, "The connection closed before the body was whole."
        ) from None
    return bytes(found)


def wants_uncertainty(request: Request) -> bool:
    """Return whether uncertainty is asked for in the address."""
    text = request.query_params.get("uncertainty", "false")
    if text not in ("true", "false"):
        raise ProblemError(Kinds.INVALID, "uncertainty must be true or false.")
    return text == "true"


def parse_binary_query(
    client: str, name: str, version: str, data: bytes, uncertainty: bool, served: ServedModel
) -> Query:
    """Return the question of D float32 values, little-endian, and three headers."""
    if not re.fullmatch(REQUEST_ID, name):
        raise ProblemError(
            Kinds.INVALID, f"Send a header Idempotency-Key that matches {REQUEST_ID}."
        )
    if len(data) != 4 * served.net.features:
        raise ProblemError(
            Kinds.INVALID,
            f"{len(data)} bytes, must be {4 * served.net.features}: {served.net.features} values "
            "of float32, little-endian.",
        )
    return check_query(client, name, version, np.frombuffer(data, "<f4"), uncertainty, served)


def parse_json_query(client: str, data: bytes, uncertainty: bool, served: ServedModel) -> Query:
    """Return the question of a JSON body; `uncertainty` as the address asks for it."""
    try:
        found = Question.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        field = first["loc"][0] if first["loc"] else "the body"
        known = field if field in (*Question.model_fields, "the body") else "an unknown field"
        # Only what the schema names: pydantic's full text may repeat what was sent.
        raise ProblemError(Kinds.INVALID, f"Wrong in {known}: {first['type']}.") from None
    if len(found.message) != served.net.features:
        raise ProblemError(
            Kinds.INVALID, f"{len(found.message)} values, must be {served.net.features}."
        )
    values = np.asarray(found.message, "<f4")
    uncertainty = uncertainty or found.uncertainty
    return check_query(client, found.request, found.model, values, uncertainty, served)


def check_query(
    client: str, name: str, version: str, values: np.ndarray, uncertainty: bool, served: ServedModel
) -> Query:
    """Return the question; ProblemError on another model or values that no encoder sends."""
    if version != served.version:
        raise ProblemError(
            Kinds.MODEL_VERSION,
            f"Model {served.version} is served: fetch /v1/model and /v1/encoder, encode anew.",
        )
    if not (np.abs(values) <= LARGEST).all():  # NaN compares false
        raise ProblemError(Kinds.INVALID, f"Values must be finite and within +-{LARGEST:g}.")
    return Query(client, name, values.tobytes(), uncertainty)
