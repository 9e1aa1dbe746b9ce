"""Numbers for operators, in Prometheus' text form; no client, message or answer is named."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Metrics:
    """The numbers of one service, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        of = self.registry
        self.requests = Counter("fedcel_requests", "Requests.", ["route", "status"], registry=of)
        self.seconds = Histogram(
            "fedcel_request_seconds", "Time of a request.", ["route"], buckets=SECONDS, registry=of
        )
        self.phases = Histogram(
            "fedcel_phase_seconds",
            "Time of a batch's part.",
            ["phase"],
            buckets=SECONDS,
            registry=of,
        )
        self.batch = Histogram(
            "fedcel_batch_size",
            "Questions answered together.",
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=of,
        )
        self.queue = Gauge("fedcel_queue_length", "Questions that wait.", registry=of)
        self.answers = Counter("fedcel_answers", "Answers given.", ["fresh"], registry=of)
        self.refusals = Counter("fedcel_refusals", "Refusals.", ["reason"], registry=of)
        self.epsilon = Counter("fedcel_epsilon_spent", "Epsilon charged to all.", registry=of)

    def phase(self, name: str, seconds: float) -> None:
        """Note the time of one part of a batch: charge, heads, noise or settle."""
        self.phases.labels(name).observe(seconds)

    def request(self, route: str, status: int, seconds: float) -> None:
        """Note a finished request."""
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """Return all numbers as Prometheus reads them."""
        return generate_latest(self.registry)
