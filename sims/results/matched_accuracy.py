"""Defences at equal accuracy: each variant's sweep read where it costs what it may cost.

A single point says little: more strength always leaks less and always costs. So a variant is the
curve through its strengths, each seed has its own, and curves are compared where the accuracy is
that of the undefended net of the same seed less an allowed loss. Differences are paired by seed.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from fedcel.errors import RunError
from sims.results.bench_rows import BENCH_AGAIN
from sims.results.columns import ACCURACY, ATTENTION, BITS, MSE, STEP_RATIO, Measures, row_measures
from sims.results.file_names import BENCH_FILE
from sims.results.records import BenchRow

CONSTANT_MEASURES = (STEP_RATIO.key, ATTENTION.key)
"""Measures that do not fade with the strength: at strength 0 they are those of the first swept."""

GRID = 101
"""Losses of accuracy at which a curve's area is read."""

Curve = Sequence[Measures]
"""One variant's points of one seed, in the order of the strengths; all have accuracy and bits."""


class Match(NamedTuple):
    """A curve's measures at one accuracy.

    `is_bound`: taken at a higher accuracy, so bits are an upper bound.
    """

    values: Measures
    is_bound: bool


Matches = dict[int, Match | None]
"""Matches by seed; None where the variant is never this accurate."""


def bits_at(curve: Curve, accuracy: float) -> Match | None:
    """Return the curve's fewest bits at `accuracy` (a share) or above; see `interpolate_curve`."""
    if not curve:
        return None
    keys, values, is_bound = interpolate_curve(curve, [accuracy])
    if np.isnan(values[0, keys.index(BITS.key)]):
        return None
    point = {k: float(v) for k, v in zip(keys, values[0], strict=True) if not np.isnan(v)}
    return Match(point if is_bound[0] else point | {ACCURACY.key: accuracy}, bool(is_bound[0]))


def interpolate_curve(
    curve: Curve, accuracies: Sequence[float]
) -> tuple[list[str], Float[np.ndarray, "L K"], Bool[np.ndarray, " L"]]:
    """Return the K measures' names, their values at L accuracies, and where these are bounds.

    The curve is linear between neighbouring strengths. Where it crosses an accuracy more than once,
    the crossing with the fewest bits counts; where a point more accurate than that leaks no more
    than any crossing, that point does and is a bound. NaN where all points are below, and for a
    measure that a point lacks.
    """
    keys = list(dict.fromkeys(key for point in curve for key in point))
    table = np.array([[point.get(key, np.nan) for key in keys] for point in curve])
    target = np.asarray(accuracies)[None, :]
    actual = table[:, keys.index(ACCURACY.key)][:, None]
    first, second = actual[:-1], actual[1:]
    inside = (np.minimum(first, second) < target) & (target < np.maximum(first, second))
    share = (target - first) / np.where(inside, second - first, 1)
    between = table[:-1, None] + share[..., None] * (table[1:] - table[:-1])[:, None]
    points = np.broadcast_to(table[:, None], (len(table), target.shape[1], len(keys)))
    values = np.concatenate([points, between, points])  # of equals, a point there comes first
    counts = np.concatenate([actual == target, inside, actual > target])
    bits = np.where(counts, values[..., keys.index(BITS.key)], np.inf)
    best = bits.argmin(0)
    rows = np.arange(target.shape[1])
    reached = np.where(np.isinf(bits[best, rows])[:, None], np.nan, values[best, rows])
    return keys, reached, best >= len(counts) - len(table)


def measure_rows(rows: Iterable[BenchRow]) -> list[Measures]:
    """Return the measures of each row; RunError when one has no accuracy or no bits."""
    measured: list[Measures] = [row_measures(row) for row in rows]
    for row in measured:
        for column in (ACCURACY, BITS):
            if column.key not in row:
                raise RunError(f"{BENCH_FILE}: a row has no {column.key!r}; bench it again")
    return measured


def match_rows(
    rows: Sequence[BenchRow], measured: Sequence[Measures], loss: float
) -> dict[str, dict[int, Match | None]]:
    """Return what each variant has `loss` points of accuracy below the undefended net.

    Args:
        rows: A bench's rows.
        measured: Their measures, or those of a bootstrap sample.
        loss: Points of accuracy, 0 or more.

    Returns:
        By variant and seed, the measures at that accuracy; None where it is never reached.

    Raises:
        RunError: When a row lacks what is needed, or a seed has no undefended row.
    """
    undefended = undefended_measures(rows, measured)
    matches: dict[str, Matches] = {}
    for (variant, seed), curve in make_curves(rows, measured, undefended).items():
        accuracy = undefended[seed][ACCURACY.key] - loss / 100
        matches.setdefault(variant, {})[seed] = bits_at(curve, accuracy)
    return matches


def curve_areas(
    rows: Sequence[BenchRow], measured: Sequence[Measures], most: float
) -> dict[str, dict[int, Measures]]:
    """Return by variant and seed the mean bits and MSE over losses of 0 to `most` points.

    The area under a curve over its width. At each of 101 losses a defender has the fewest bits that
    the curve reaches, or those of the undefended net, which is always there to take, and the MSE
    of the same net; no MSE where one of them has none.

    Args:
        rows: A bench's rows.
        measured: Their measures, or those of a bootstrap sample.
        most: The largest loss, in points above 0.

    Raises:
        RunError: As `match_rows`.
    """
    undefended = undefended_measures(rows, measured)
    losses = np.linspace(0, most / 100, GRID)
    areas: dict[str, dict[int, Measures]] = {}
    for (variant, seed), curve in make_curves(rows, measured, undefended).items():
        top = undefended[seed]
        keys, reached, _ = interpolate_curve(curve, list(top[ACCURACY.key] - losses))
        helps = reached[:, keys.index(BITS.key)] < top[BITS.key]  # NaN does not
        mean = {
            key: float(np.where(helps, reached[:, keys.index(key)], top[key]).mean())
            for key in (BITS.key, MSE.key)
            if key in top and key in keys
        }
        areas.setdefault(variant, {})[seed] = {k: v for k, v in mean.items() if not np.isnan(v)}
    return areas


def undefended_measures(
    rows: Sequence[BenchRow], measured: Sequence[Measures]
) -> dict[int, Measures]:
    """Return what the first undefended variant has by seed; RunError if a seed has none."""
    if any(row.undefended is None for row in rows):
        raise RunError(f"{BENCH_FILE}: a row has no 'undefended'; {BENCH_AGAIN}")
    first = next((row.variant for row in rows if row.undefended), None)
    undefended = {
        row.seed: values
        for row, values in zip(rows, measured, strict=True)
        if row.undefended and row.variant == first
    }
    for seed in sorted({row.seed for row in rows} - undefended.keys()):
        raise RunError(
            f"{BENCH_FILE} has no undefended row of seed {seed}, whose accuracy the others are "
            "matched to; bench a variant without cel.kind and defence.name with that seed"
        )
    return undefended


def make_curves(
    rows: Sequence[BenchRow], measured: Sequence[Measures], undefended: Mapping[int, Measures]
) -> dict[tuple[str, int], Curve]:
    """Return the curve of each variant and seed.

    A sweep that begins at the undefended net (`anchored`) has that as its point of strength 0,
    unless 0 was swept.
    """
    groups: dict[tuple[str, int], list[tuple[BenchRow, Measures]]] = {}
    for row, values in zip(rows, measured, strict=True):
        groups.setdefault((row.variant, row.seed), []).append((row, values))
    curves: dict[tuple[str, int], Curve] = {}
    for (variant, seed), group in groups.items():
        ordered = sorted(group, key=lambda pair: pair[0].strength or 0.0)
        points = [values for _, values in ordered]
        if all(row.anchored for row, _ in group) and (ordered[0][0].strength or 0.0) > 0:
            constant = {key: points[0][key] for key in CONSTANT_MEASURES if key in points[0]}
            points.insert(0, {**undefended[seed], **constant})
        curves[variant, seed] = points
    return curves


def paired_differences(ours: Matches, reference: Matches, key: str) -> dict[int, float]:
    """Return ours less reference of one measure, by seed, where both have it."""
    return {
        seed: first.values[key] - second.values[key]
        for seed in ours.keys() & reference.keys()
        if (first := ours[seed]) and (second := reference[seed])
        if key in first.values and key in second.values
    }
