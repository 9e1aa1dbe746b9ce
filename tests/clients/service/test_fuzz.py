"""Questions drawn from the OpenAPI document, right, nearly right and wrong: never a 5xx."""

import io
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clients.service.monitoring import LOGGER, JsonLines
from tests.clients.serving import Running, running

REQUESTS = int(os.environ.get("FEDCEL_REQUESTS", "1000"))
MARK = "314159.25"
"""A value of every message and of nothing else: it must not be in the log."""

MESSAGES = st.lists(st.floats(-2, 2, width=32), min_size=7, max_size=7).map(
    lambda values: np.array([float(MARK), *values], "<f4").tobytes()
)
"""Messages that are right."""


@contextmanager
def logged() -> Iterator[io.StringIO]:
    """Collect the service's log."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    try:
        yield stream
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(logging.NOTSET)


def test_no_question_makes_the_service_fail(tmp_path: Path) -> None:
    """Thousands of them: only documented statuses, replies of the documented form, a clean log."""
    with logged() as log, running(tmp_path) as up, httpx.Client(base_url=up.url) as http:
        document = http.get("/openapi.json").json()
        counts = ask_all(up, http, document["paths"]["/v1/query"]["post"])
    assert counts["200"] > 100 and counts["422"] > 100, counts
    text = log.getvalue()
    assert len(text.splitlines()) > REQUESTS
    assert MARK not in text and up.key not in text and up.key[-43:] not in text


def ask_all(up: Running, http: httpx.Client, operation: dict[str, Any]) -> dict[str, int]:
    """Return how often each status was answered to four questions of each example."""
    forms = {
        status: next(iter(response["content"].values()))["schema"]
        for status, response in operation["responses"].items()
        if status != "200"
    }
    counts: dict[str, int] = {}

    def send(content: bytes, kind: str, key: str, name: str, query: str) -> None:
        headers = {
            "authorization": f"Bearer {key}",
            "content-type": kind,
            "idempotency-key": name,
            "model-version": up.model.version,
        }
        reply = http.post(f"/v1/query{query}", content=content, headers=headers)
        status = str(reply.status_code)
        counts[status] = counts.get(status, 0) + 1
        assert status in operation["responses"] and reply.status_code < 500
        if status != "200":
            jsonschema.validate(reply.json(), forms[status])

    @settings(
        max_examples=REQUESTS // 4,
        deadline=None,
        database=None,
        suppress_health_check=[*HealthCheck],
    )
    @given(MESSAGES, st.binary(max_size=40), st.integers(0, 9))
    def ask(message: bytes, junk: bytes, rare: int) -> None:
        name = f"request-{rare}" if rare else "!"
        query = {1: "?uncertainty=true", 2: "?uncertainty=%00"}.get(rare, "")
        kind = "application/json" if rare == 3 else "application/octet-stream"
        send(junk, kind, up.key if rare else f"x{junk.hex()}", name, "")
        send(junk, "application/octet-stream", up.key, name, query)
        name = f"{name}-{sum(counts.values())}"
        send(message, "application/octet-stream", up.key, f"{name}-right", query)
        send(junk.ljust(32, b"\x3f")[:32], "application/octet-stream", up.key, name, query)

    ask()
    return counts
