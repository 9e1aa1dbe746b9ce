"""OpenTelemetry: a span and a duration of each request, for operators with a collector.

Attributes are method, route and status alone: no client, no key, nothing that was sent, which the
instrumentation for ASGI would send. A collector that fails never hurts an answer.
"""

import time
from collections.abc import Mapping
from threading import Thread
from typing import TYPE_CHECKING, final

from clients.service.monitoring import LOGGER
from clients.service_messages import QUERY_PATH, READ_PATHS
from fedcel.extras import require_extra

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.trace import TracerProvider

ENDPOINT_VARIABLES = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)
CLOSE_SECONDS = 5.0
"""How long the end of a service waits for its collector."""
EXPORTED_ROUTES = {QUERY_PATH, *READ_PATHS}


@final
class Telemetry:
    """Sends a span and a duration of each request to /v1."""

    def __init__(self, traces: "TracerProvider", metrics: "MeterProvider") -> None:
        self._traces, self._metrics = traces, metrics
        self._tracer = traces.get_tracer("fedcel")
        self._seconds = metrics.get_meter("fedcel").create_histogram(
            "http.server.request.duration", "s", "Time of a request."
        )

    def observe_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Note a request that has just ended."""
        if route not in EXPORTED_ROUTES:
            return
        attributes: dict[str, str | int] = {
            "http.request.method": method,
            "http.route": route,
            "http.response.status_code": status,
        }
        end = time.time_ns()
        span = self._tracer.start_span(
            f"{method} {route}", attributes=attributes, start_time=end - round(1e9 * seconds)
        )
        span.end(end)
        self._seconds.record(seconds, attributes)

    def close(self) -> None:
        """Send what is left, for `CLOSE_SECONDS` at most: a collector that is away is given up."""
        end = time.monotonic() + CLOSE_SECONDS
        # Neither provider takes a limit of time for all that its end may wait for. A daemon that
        # still waits does not keep the process.
        threads = [
            Thread(target=shut_down, args=[provider], name="fedcel-telemetry-end", daemon=True)
            for provider in (self._traces, self._metrics)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            LOGGER.warning("telemetry given up", extra={"seconds": CLOSE_SECONDS})


def shut_down(provider: "TracerProvider | MeterProvider") -> None:
    """Send what a provider has left and end it; what fails is logged."""
    try:
        provider.shutdown()
    except Exception as error:  # the service ends all the same
        LOGGER.error("telemetry failed", exc_info=error)


def open_telemetry(environment: Mapping[str, str]) -> Telemetry | None:
    """Return exporters to the collector that the environment names, None without one.

    They are in threads of their own. MissingExtraError where their packages are not installed.
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
    traces = TracerProvider(resource=resource, shutdown_on_exit=False)  # `close` does, in time
    traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    metrics = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    return Telemetry(traces, metrics)
