"""How often a client may ask."""

from collections.abc import Callable


class Rates:
    """One token bucket a client: `rate` questions a second on average, twice as many at once."""

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self.rate = rate
        self.clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def wait(self, client: str) -> float:
        """Take a token and return 0, or return the seconds until there is one."""
        now, full = self.clock(), max(1.0, 2 * self.rate)
        tokens, last = self._buckets.get(client, (full, now))
        tokens = min(full, tokens + (now - last) * self.rate)
        missing = max(0.0, 1 - tokens)
        self._buckets[client] = (tokens if missing else tokens - 1, now)
        return missing / self.rate
