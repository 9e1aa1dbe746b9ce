"""Metrics that clients report besides their updates: their ranges, and their means.

A client may report whatever it likes. Its numbers go into the log, and one of them, `spread`, moves
an adaptive threshold; so each has a range, and none decides alone.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf, isfinite, log
from typing import NamedTuple

from fedcel.federation import record_names
from fedcel.losses import MetricRange

LEAD = 100.0
"""A number without a largest possible value is at most so many times the usual or middle one."""
HELD = 4.0
"""In what moves a threshold, a number counts as at most so many times the middle one, or a part."""
_SLACK = 1e-3  # of rounding, beyond what is possible
_USUAL_NLL = 10.0  # nats, where the number of classes is not known
_MAX_METRICS = 1000  # of one client, besides those of single classes
_MAX_NAME = 100  # characters of a metric's name
_NOT_AVERAGED = {record_names.EXAMPLES, record_names.PARTITION, record_names.ROUND}
_CLASS_METRIC = re.compile(r"(.+)-(0|[1-9]\d{0,3})")
"""A metric of one class, `plain-spread-3`, and the name of the same metric over all classes."""


class MetricSummary(NamedTuple):
    """Summary of the metrics of a round's clients."""

    means: dict[str, float]
    left_out: dict[int, str]
    """Position of each client some of whose numbers do not count, and why."""
    spread: float | None = None
    """The mean `spread` that a threshold follows: each client's held near the middle one."""


def declare_nll(classes: int | None) -> MetricRange:
    """Declare a negative log-likelihood: usual is that of a guess.

    Args:
        classes: The run's number of classes, None where nobody knows.

    Returns:
        Its range.
    """
    return MetricRange(0.0, inf, log(max(2, classes)) if classes else _USUAL_NLL)


def summarise_metrics(
    rows: Sequence[Mapping[str, float]],
    weights: Sequence[float],
    declared: Mapping[str, MetricRange],
    classes: int | None = None,
) -> MetricSummary:
    """Average each metric over the clients that report it, by their weights.

    A client one of whose numbers is impossible reports nothing: not finite, out of its declared
    range, or more than `LEAD` times what is usual and what the middle client reports. Of the
    others, a metric counts where more than half report it; one of a class, `plain-spread-3`, where
    `plain-spread` does, for only those report it that saw the class. A metric that is not declared,
    a user's own, is the middle client's in the place of the mean, since nobody knows its range; of
    a class, it is at most `LEAD` times the middle client's of all classes.

    Metrics of classes beyond the run's `classes` do not count. None: not known.
    """
    limit = _MAX_METRICS + len(declared) * (classes or _MAX_METRICS)
    rows = [{k: v for k, v in row.items() if k not in _NOT_AVERAGED} for row in rows]
    left_out: dict[int, str] = {}
    for position, row in enumerate(rows):
        if reason := _find_impossible(row, declared, limit):
            left_out[position] = reason
    valid = [position for position in range(len(rows)) if position not in left_out]
    limits = _find_limits([rows[k] for k in valid], [weights[k] for k in valid], declared)
    for position in valid:
        if reason := _find_beyond(rows[position], limits):
            left_out[position] = reason
    valid = [position for position in valid if position not in left_out]
    reporters = Counter(key for position in valid for key in rows[position])
    common = {key for key, count in reporters.items() if 2 * count > len(valid)}
    counted = {key for key in reporters if _counts(key, common, declared, classes)}
    for position in valid:
        if strange := sorted(rows[position].keys() - counted):
            left_out[position] = f"most clients report no {_shorten(strange)}"
    means: dict[str, float] = {}
    for key in sorted(counted):
        pairs = [(weights[k], rows[k][key]) for k in valid if key in rows[k]]
        means[key] = _mean(pairs) if _find_range(key, declared) else _median(pairs)
    spread = None
    if "spread" in means:
        reported = [k for k in valid if "spread" in rows[k]]
        spread = _mean(_hold([(weights[k], rows[k]["spread"]) for k in reported]))
    return MetricSummary({k: v for k, v in means.items() if isfinite(v)}, left_out, spread)


def _find_range(key: str, declared: Mapping[str, MetricRange]) -> MetricRange | None:
    """Return the declared range of a metric, or of the metric of all classes that it is one of."""
    if key in declared:
        return declared[key]
    match = _CLASS_METRIC.fullmatch(key)
    metric_range = declared.get(match[1]) if match else None
    return metric_range if metric_range and metric_range.is_per_class else None


def _counts(
    key: str, common: set[str], declared: Mapping[str, MetricRange], classes: int | None
) -> bool:
    """Whether most clients report a metric, or the one of all classes that it belongs to."""
    if key in common:
        return True
    match = _CLASS_METRIC.fullmatch(key)
    if match is None or match[1] not in common:
        return False
    is_one_number = match[1] in declared and not declared[match[1]].is_per_class
    return not is_one_number and (classes is None or int(match[2]) < classes)


def _find_impossible(
    row: Mapping[str, float], declared: Mapping[str, MetricRange], limit: int
) -> str | None:
    """Describe a number of a client that cannot be, or None."""
    if len(row) > limit:
        return f"it reports {len(row)} metrics, at most {limit} are read"
    for key, value in row.items():
        if len(key) > _MAX_NAME:
            return f"a metric's name has {len(key)} characters, at most {_MAX_NAME} are read"
        if not isfinite(value):
            return f"{key!r} is {value}, must be a finite number"
        if metric_range := _find_range(key, declared):
            low, high, *_ = metric_range
            slack = _SLACK * max(1.0, abs(high)) if isfinite(high) else _SLACK
            if not low - slack <= value <= high + slack:
                return f"{key!r} is {value:.4g}, must be in [{low:.4g}, {high:.4g}]"
    return None


def _find_limits(
    rows: Sequence[Mapping[str, float]],
    weights: Sequence[float],
    declared: Mapping[str, MetricRange],
) -> dict[str, float]:
    """Return the largest size that is accepted of each metric without a bound of its own."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    for row, weight in zip(rows, weights, strict=True):
        for key, value in row.items():
            pairs.setdefault(key, []).append((weight, abs(value)))
    limits = {}
    for key, sizes in pairs.items():
        metric_range, match = _find_range(key, declared), _CLASS_METRIC.fullmatch(key)
        if metric_range and not isfinite(metric_range.highest):
            limits[key] = LEAD * max(metric_range.usual, _median(sizes))
        elif metric_range is None and match and match[1] in pairs.keys() - declared.keys():
            # Of a class that a single client may have seen, so there may be no other to compare.
            limits[key] = LEAD * _median(pairs[match[1]])
    return limits


def _find_beyond(row: Mapping[str, float], limits: Mapping[str, float]) -> str | None:
    """Describe a number of a client far beyond what the others report, or None."""
    for key, limit in limits.items():
        if abs(row.get(key, 0.0)) > limit:
            return (
                f"{key!r} is {row[key]:.4g}, at most {limit:.4g} is accepted: "
                f"{LEAD:g} times what is usual or what the middle client reports"
            )
    return None


def _mean(pairs: Sequence[tuple[float, float]]) -> float:
    return sum(w * v for w, v in pairs) / sum(w for w, _ in pairs)


def _median(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the lower median of (weight, value): at least half of the weight is not above it."""
    ordered = sorted((value, weight) for weight, value in pairs)
    half = sum(weight for _, weight in ordered) / 2
    total = 0.0
    for value, weight in ordered:
        total += weight
        if total >= half:
            return value
    return ordered[-1][0]  # rounding


def _hold(pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return (weight, value) with each value within a factor of `HELD` of the middle one."""
    middle = _median(pairs)
    return [(w, max(middle / HELD, min(HELD * middle, v))) for w, v in pairs]


def _shorten(names: Sequence[str]) -> str:
    """Return the first name, and how many others there are."""
    more = f" and {len(names) - 1} others" if len(names) > 1 else ""
    return f"{names[0]!r}{more}"
