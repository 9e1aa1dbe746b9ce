"""OpenTelemetry: a span and two numbers a request, for whoever has a collector.

Attributes are method, route and status alone: no client, no key, nothing that was sent. Only a
service that is asked for it has this layer, and what fails in it never hurts an answer.
"""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clients.service.monitoring import ROUTES
from fedcel.extras import require_extra

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.trace import TracerProvider

ENDPOINT_VARIABLES = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)
EXPORTED_ROUTES = ROUTES - {"/healthz", "/readyz", "/metrics"}


class Telemetry(NamedTuple):
    """Where spans and numbers go."""

    traces: "TracerProvider"
    metrics: "MeterProvider"

    def close(self) -> None:
        """Send what is left; a collector that does not answer is given up."""
        self.traces.shutdown()
        self.metrics.shutdown()


def open_telemetry(environment: Mapping[str, str]) -> Telemetry | None:
    """Return exporters to the collector that the standard variables name, None without one.

    Args:
        environment: The process's; the exporters read the other variables of OpenTelemetry.

    Returns:
        Exporters in threads of their own.

    Raises:
        MissingExtraError: A collector is named, but its packages are not installed.
    """
    is_disabled = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if is_disabled or not any(environment.get(name) for name in ENDPOINT_VARIABLES):
        return None
    require_extra("telemetry")
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({"service.name": environment.get("OTEL_SERVICE_NAME", "fedcel")})
    traces = TracerProvider(resource=resource)
    traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    return Telemetry(traces, MeterProvider(metric_readers=[reader], resource=resource))


class TelemetryLayer:
    """Makes a span and a duration of each request to /v1."""

    def __init__(self, app: ASGIApp, telemetry: Telemetry) -> None:
        self.app = app
        self._tracer = telemetry.traces.get_tracer("fedcel")
        self._seconds = telemetry.metrics.get_meter("fedcel").create_histogram(
            "http.server.request.duration", "s", "Time of a request."
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and note how it ended."""
        if scope["type"] != "http" or scope["path"] not in EXPORTED_ROUTES:
            await self.app(scope, receive, send)
            return
        start, begun = time.time_ns(), time.perf_counter()
        status = 500

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_and_note)
        finally:
            attributes: dict[str, str | int] = {
                "http.request.method": scope["method"],
                "http.route": scope["path"],
                "http.response.status_code": status,
            }
            name = f"{scope['method']} {scope['path']}"
            self._tracer.start_span(name, attributes=attributes, start_time=start).end()
            self._seconds.record(time.perf_counter() - begun, attributes)
