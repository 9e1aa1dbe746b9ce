"""Which attack a defence is held to."""

import statistics
from collections.abc import Iterable


def worst_attack(scores: Iterable[tuple[str, float]]) -> str | None:
    """Return the attack that rebuilt images best: the lowest MSE, mean over its seeds.

    `scores` are pairs of an attack's name and the MSE of one of its runs, on pixels in [0, 1].
    None when no trained attack was run. The first of equals wins.
    """
    found: dict[str, list[float]] = {}
    for name, mse in scores:
        found.setdefault(name, []).append(mse)
    return min(found, key=lambda name: statistics.fmean(found[name]), default=None)
