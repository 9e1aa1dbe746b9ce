"""What an operator sees: numbers for Prometheus, and the log, one JSON object a line.

No client, message or answer is named in the numbers; inputs, features, answers and keys never
reach the log.
"""

import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TextIO

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clients.service.charged_answers import PrivateAnswer
from clients.service.problems import ProblemError, ProblemKind, list_frames
from fedcel.privacy.ledger import MICRO, Refusal

LOGGER = logging.getLogger("fedcel.service")
RECORD_FIELDS = {*vars(logging.makeLogRecord({})), "message", "asctime", "color_message"}
LATENCY_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
ROUTES = frozenset(
    {"/v1/query", "/v1/model", "/v1/encoder", "/v1/budget", "/healthz", "/readyz", "/metrics"}
)
RequestObserver = Callable[[str, str, int, float], None]
"""Is told of a request that ended: method, route, status, seconds."""
RELOAD_OUTCOMES = ("served", "unchanged", "refused")
FRESHNESS = {True: "true", False: "false"}
SERVER_MESSAGES = frozenset(
    {
        "ASGI callable returned without completing response.",
        "ASGI callable returned without starting response.",
        "Application shutdown failed. Exiting.",
        "Application startup failed. Exiting.",
        "Cancel %s running task(s), timeout graceful shutdown exceeded",
        "Exception in ASGI application\n",
        "Invalid HTTP request received.",
        "Unsupported upgrade request.",
    }
)
"""What the web server logs in words of its own; others may repeat what was sent."""


class Metrics:
    """The numbers of one service, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        timer = partial(Histogram, buckets=LATENCY_BUCKETS, registry=self.registry)
        self.requests = counter("fedcel_requests", "Requests.", ["route", "status"])
        self.seconds = timer("fedcel_request_seconds", "Time of a request.", ["route"])
        self.phases = timer("fedcel_phase_seconds", "Time of a batch's part.", ["phase"])
        self.batch = Histogram(
            "fedcel_batch_size",
            "Questions answered together.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128),
            registry=self.registry,
        )
        self.queue = Gauge("fedcel_queue_length", "Questions that wait.", registry=self.registry)
        self.answers = counter("fedcel_answers", "Answers given.", ["fresh"])
        self.refusals = counter("fedcel_refusals", "Refusals.", ["reason"])
        self.epsilon = counter("fedcel_epsilon_spent", "Epsilon charged to all.")
        self.versions = Gauge(
            "fedcel_served_versions", "Model versions that are answered.", registry=self.registry
        )
        self.version_queries = counter(
            "fedcel_version_queries", "Questions by model version.", ["model"]
        )
        self.reloads = counter("fedcel_reloads", "Reloads of the run.", ["outcome"])
        for outcome in RELOAD_OUTCOMES:
            self.reloads.labels(outcome)  # a count that begins at 1 shows no increase
        self.key_expiry = Gauge(
            "fedcel_key_expiry_seconds", "Time to the first expiry.", registry=self.registry
        )
        self.keys_expiring = Gauge(
            "fedcel_keys_expiring", "Keys that end within seven days.", registry=self.registry
        )
        self._answers = {
            is_fresh: self.answers.labels(name) for is_fresh, name in FRESHNESS.items()
        }
        self._requests: dict[tuple[str, int], tuple[Counter, Histogram]] = {}

    def observe_phase(self, name: str, seconds: float) -> None:
        """Note the time of one part of a batch: heads, noise, write or charge."""
        self.phases.labels(name).observe(seconds)

    def observe_request(self, route: str, status: int, seconds: float) -> None:
        """Note a request; what counts it is looked up once."""
        if (route, status) not in self._requests:
            self._requests[route, status] = (
                self.requests.labels(route, str(status)),
                self.seconds.labels(route),
            )
        count, timer = self._requests[route, status]
        count.inc()
        timer.observe(seconds)

    def observe_batch(self, replies: Sequence[PrivateAnswer | Refusal], waiting: int) -> None:
        """Note a batch's answers, together, and how many queries wait for the next."""
        self.queue.set(waiting)
        self.batch.observe(len(replies))
        answers = [reply for reply in replies if isinstance(reply, PrivateAnswer)]
        fresh = sum(answer.is_fresh for answer in answers)
        self._answers[True].inc(fresh)
        self._answers[False].inc(len(answers) - fresh)
        self.epsilon.inc(sum(answer.spent for answer in answers) / MICRO)

    def to_text(self) -> bytes:
        """Return all numbers as Prometheus reads them."""
        return generate_latest(self.registry)


class RequestMonitor:
    """Counts and logs requests; what fails unexpectedly is answered as a problem."""

    def __init__(
        self, app: ASGIApp, metrics: Metrics, observe: RequestObserver | None = None
    ) -> None:
        """Watch an application.

        Args:
            app: The application.
            metrics: What counts its requests.
            observe: Who else is told of each request.
        """
        self.app = app
        self.metrics = metrics
        self.observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on and note how it ended."""
        if scope["type"] != "http":
            await self.app(scope, receive, partial(send_without_words, send))
            return
        start = time.perf_counter()
        status = 0
        log_fields: dict[str, str] = {}
        scope["fedcel"] = log_fields

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_and_note)
        except Exception as error:
            LOGGER.error("failed", exc_info=error)
            if status == 0:
                problem = ProblemError(ProblemKind.FAILED, "It is in the service's log.")
                await problem.to_response()(scope, receive, send_and_note)
        route = scope["path"] if scope["path"] in ROUTES else "other"
        seconds = time.perf_counter() - start
        self.metrics.observe_request(route, status, seconds)
        if self.observe is not None:
            self.observe(scope["method"], route, status, seconds)
        if LOGGER.isEnabledFor(logging.INFO):
            line = {"route": route, "status": status, "ms": round(1000 * seconds, 2), **log_fields}
            LOGGER.info("request", extra=line)


async def send_without_words(send: Send, message: Message) -> None:
    """Pass on how the start or the end went, without the traceback of a failure.

    The service logs the failure itself; the web server would log the text once more.
    """
    await send({name: value for name, value in message.items() if name != "message"})


class JsonLines(logging.Formatter):
    """Formats a record, its `extra` fields, and where an exception arose but not its words.

    Words of an exception may repeat what was sent, and so may those of other packages: of them a
    line has the fixed texts of the web server, or else where it comes from.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage() if record.name.startswith("fedcel") else "server",
        }
        if record.msg in SERVER_MESSAGES:
            line["message"] = record.getMessage().strip()
        elif line["event"] == "server":
            line["at"] = [f"{record.filename}:{record.lineno}"]
        line |= {name: value for name, value in vars(record).items() if name not in RECORD_FIELDS}
        if record.exc_info and record.exc_info[0]:
            line |= {"error": record.exc_info[0].__name__, "at": list_frames(record.exc_info[2])}
        return json.dumps(line, default=repr)


def configure_logs(stream: TextIO = sys.stderr) -> None:
    """Send the service's log and the web server's to `stream`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    for logger, level in ((LOGGER, logging.INFO), (logging.getLogger("uvicorn"), logging.WARNING)):
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
