"""What a defence costs a client: its training step against plain cross-entropy."""

import statistics
import time
from functools import lru_cache

from clients import holder
from fedcel.data import load
from fedcel.settings import Settings

REPEATS = 15  # rounds of each, in turn, so that a drifting machine hits both alike


@lru_cache(maxsize=64)
def train_step_ratio(settings: Settings) -> float:
    """Return the median ratio of a round's time with the loss fully on to one without it."""
    if settings.cel.kind == "none":
        return 1.0
    plain = settings.model_copy(update={"cel": settings.cel.model_copy(update={"kind": "none"})})
    ratios = []
    for _ in range(REPEATS):
        without = seconds(plain)
        ratios.append(seconds(settings) / without)
    return statistics.median(ratios)


def seconds(settings: Settings) -> float:
    """Return the time of one client's round, in the middle of burn-in after the ramp."""
    number = max(1, round(settings.rounds * max(settings.cel.ramp, 0.01)))
    parts = load(settings.data, settings.clients, settings.seed).clients
    total = sum(len(part.y) for part in parts)
    flat = holder.workspace(settings)
    received = flat.vector.clone()
    begin = time.perf_counter()
    holder.train(settings, flat, 0, received, number, len(parts[0].y) / total, total, None)
    return time.perf_counter() - begin
