"""Numbers for Prometheus, and the log, one JSON object a line.

No client, message or answer is named in the numbers; inputs, features, answers and keys never
reach the log.
"""

import json
import logging
import sys
import time
from functools import cache, partial
from typing import TextIO

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from clients.service.problems import list_frames

LOGGER = logging.getLogger("fedcel.service")
RECORD_FIELDS = {*vars(logging.makeLogRecord({})), "message", "asctime", "color_message"}
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
LATENCY_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
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
"""Words of the web server's own log; others may repeat what was sent."""


class Metrics:
    """The numbers of one service, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        timer = partial(Histogram, registry=self.registry)
        seconds = partial(timer, buckets=LATENCY_BUCKETS)
        self.requests = counter("fedcel_requests", "Requests.", ["route", "status"])
        self.seconds = seconds("fedcel_request_seconds", "Time of a request.", ["route"])
        self.phases = seconds("fedcel_phase_seconds", "Time of a batch's part.", ["phase"])
        self.batch = timer(
            "fedcel_batch_size", "Questions answered together.", buckets=BATCH_BUCKETS
        )
        self.queue = gauge("fedcel_queue_length", "Questions that wait.")
        self.answers = counter("fedcel_answers", "Answers given.", ["fresh"])
        self.refusals = counter("fedcel_refusals", "Refusals.", ["reason"])
        self.epsilon = counter("fedcel_epsilon_spent", "Epsilon charged to all.")
        self.find_route = cache(
            lambda route, status: (self.requests.labels(route, status), self.seconds.labels(route))
        )
        for is_fresh in ("true", "false"):
            self.answers.labels(is_fresh)
        self.key_expiry = gauge("fedcel_key_expiry_seconds", "Time to the first expiry.")


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
