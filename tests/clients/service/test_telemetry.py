"""Spans and numbers for a collector: what they hold, and what never gets into them."""

import asyncio
import gzip
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import ClassVar

import httpx
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import (
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import clients.service.telemetry as telemetry_module
from clients.service.app import create_app
from clients.service.service import Limits, Service
from clients.service.telemetry import Telemetry, open_telemetry
from tests.clients.serving import made_run, make_offer


class BrokenExporter(SpanExporter):
    """A collector that cannot be reached."""

    def export(self, spans: object) -> SpanExportResult:
        """Fail."""
        raise ConnectionError("no collector")


class FailingReader(InMemoryMetricReader):
    """Cannot end."""

    def shutdown(self, timeout_millis: float = 0, **_: object) -> None:
        """Fail."""
        raise RuntimeError("it is ended already")


def ask(tmp_path: Path, telemetry: Telemetry, paths: list[str]) -> list[int]:
    """Read addresses of a service with this telemetry; return the statuses."""
    run = made_run()
    service = Service(make_offer(run), tmp_path / "ledger.db", Limits())
    app = create_app(service, telemetry)

    async def read() -> list[int]:
        transport = httpx.ASGITransport(app)
        await service.start()
        headers = {"Authorization": "Bearer secret-key"}
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            statuses = [(await client.get(p, headers=headers)).status_code for p in paths]
        await service.end()
        return statuses

    return asyncio.run(read())


def test_spans_hold_route_and_status_alone(tmp_path: Path) -> None:
    """Of /v1 only; neither keys nor unknown addresses, which may hold anything."""
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    traces = TracerProvider()
    traces.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = Telemetry(traces, MeterProvider(metric_readers=[reader]))
    assert ask(tmp_path, telemetry, ["/v1/model?secret=1", "/healthz", "/secret"]) == [
        401,
        200,
        404,
    ]
    (span,) = exporter.get_finished_spans()
    attributes = {
        "http.request.method": "GET", "http.route": "/v1/model", "http.response.status_code": 401,
    }  # fmt: skip
    assert (span.name, dict(span.attributes or {})) == ("GET /v1/model", attributes)
    text = reader.get_metrics_data().to_json()  # type: ignore[union-attr]
    assert "http.server.request.duration" in text and "secret" not in text + span.to_json()
    telemetry.close()


def test_a_broken_collector_hurts_no_answer(tmp_path: Path) -> None:
    """Every request is answered as without it."""
    traces = TracerProvider()
    traces.add_span_processor(SimpleSpanProcessor(BrokenExporter()))
    assert (
        ask(tmp_path, Telemetry(traces, MeterProvider()), ["/v1/model", "/v1/budget"]) == [401] * 2
    )


def test_it_is_off_unless_a_collector_is_named() -> None:
    """And where OpenTelemetry is disabled as a whole."""
    assert open_telemetry({}) is None
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:1", "OTEL_SDK_DISABLED": "true"}
    assert open_telemetry(variables) is None


class Collector(BaseHTTPRequestHandler):
    """Keeps what is sent to it."""

    received: ClassVar[list[tuple[str, bytes]]] = []

    def do_POST(self) -> None:
        """Take spans or numbers."""
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.received.append((self.path, body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_collector_gets_both_and_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over HTTP; needs the exporter's package, which is in the extra `telemetry`."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        telemetry = open_telemetry(os.environ)
        assert telemetry is not None
        assert ask(tmp_path, telemetry, ["/v1/model"]) == [401]
        telemetry.close()
        server.shutdown()
    assert {path for path, _ in Collector.received} == {"/v1/traces", "/v1/metrics"}
    sent = b"".join(body for _, body in Collector.received)
    assert b"GET /v1/model" in sent and b"secret" not in sent


@contextmanager
def collecting(seconds: float, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Name a collector that answers after some seconds; yield the spans that it gets."""
    received: list[bytes] = []
    ended = Event()

    class SlowCollector(Collector):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            ended.wait(seconds)
            if self.path == "/v1/traces":
                received.append(body)
            self.send_response(200)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), SlowCollector) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        yield received
        ended.set()
        server.shutdown()


def observe_and_close(count: int) -> float:
    """Note requests and end at once; return the seconds that the end took."""
    telemetry = open_telemetry(os.environ)
    assert telemetry is not None
    for _ in range(count):
        telemetry.observe_request("POST", "/v1/query", 200, 0.001)
    start = time.monotonic()
    telemetry.close()
    return time.monotonic() - start


def test_a_slow_collector_gets_every_span(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batches, half a second each, are waited for."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    with collecting(0.5, monkeypatch) as received:
        assert 0.9 < observe_and_close(900) < telemetry_module.CLOSE_SECONDS
    assert sum(body.count(b"POST /v1/query") for body in received) == 900


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_collector_that_is_away_is_given_up(
    is_silent: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One takes requests and does not answer, at the other's address nobody listens."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    monkeypatch.setattr(telemetry_module, "CLOSE_SECONDS", 1.0)
    with collecting(30, monkeypatch):
        if not is_silent:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
        assert 0.9 < observe_and_close(900) < 2
    assert "telemetry given up" in caplog.messages


def test_an_end_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The service ends all the same."""
    metrics = MeterProvider([FailingReader()])
    Telemetry(TracerProvider(), metrics).close()
    assert "telemetry failed" in caplog.messages
