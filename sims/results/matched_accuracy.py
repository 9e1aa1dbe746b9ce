"""Defences at equal accuracy: each variant's sweep read where it costs what it may cost.

A single point says little: more strength always leaks less and always costs. So a variant is the
curve through its strengths, each seed has its own, and curves are compared where the accuracy is
that of the undefended net of the same seed less an allowed loss. Differences are paired by seed.

All is computed at once for S samples of the test images: the first one is the images as measured,
the others are bootstrap samples.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from fedcel.errors import RunError
from sims.results.columns import (
    ACCURACY,
    ATTENTION,
    BITS,
    MSE,
    POSITIONS,
    STEP_RATIO,
    Measures,
)
from sims.results.records import BENCH_FILE, BenchRow

CONSTANT_MEASURES = [POSITIONS[column.key] for column in (STEP_RATIO, ATTENTION)]
"""Measures that do not fade with the strength: at strength 0 they are those of the first swept."""
GRID = 101
"""Losses of accuracy at which a curve's area is read."""
ACCURACY_AT, BITS_AT = POSITIONS[ACCURACY.key], POSITIONS[BITS.key]


class Curve(NamedTuple):
    """A variant's P points of one seed, by rising strength, and the undefended net of that seed."""

    points: Float[np.ndarray, "S P K"]
    undefended: Float[np.ndarray, "S K"]


class Match(NamedTuple):
    """A curve's measures at one accuracy; NaN in samples that never reach it.

    `is_bound`: taken at a higher accuracy, so bits are an upper bound.
    """

    values: Float[np.ndarray, "S K"]
    is_bound: bool = False

    def read(self, key: str) -> Float[np.ndarray, " S"]:
        """Return one measure in all samples."""
        return self.values[:, POSITIONS[key]]

    @property
    def is_reached(self) -> bool:
        """Whether the variant is this accurate on the images as measured."""
        return not np.isnan(self.values[0, BITS_AT])


Curves = dict[str, dict[int, Curve]]
Matches = dict[int, Match]
"""Matches of a variant by seed."""


def read_curve(
    points: Float[np.ndarray, "S P K"], accuracies: Float[np.ndarray, "S L"]
) -> tuple[Float[np.ndarray, "S L K"], Bool[np.ndarray, "S L"]]:
    """Return a curve's measures at L accuracies, and where these are bounds.

    It is linear between neighbouring strengths. Where it crosses an accuracy more than once, the
    crossing with the fewest bits counts; where a point more accurate than that leaks no more than
    any crossing, that point does and is a bound. NaN where all points are below, and for a measure
    that a point lacks.
    """
    actual, bits = (points[:, None, :, place] for place in (ACCURACY_AT, BITS_AT))
    target = accuracies[..., None]
    first, second = actual[..., :-1], actual[..., 1:]
    crosses = (np.minimum(first, second) < target) & (target < np.maximum(first, second))
    share = np.where(crosses, (target - first) / np.where(crosses, second - first, 1), 0)
    between = bits[..., :-1] + share * np.diff(bits)
    candidates = (  # of equals, a point there comes first
        np.where(actual == target, bits, np.inf),
        np.where(crosses, between, np.inf),
        np.where(actual > target, bits, np.inf),
    )
    leaks, count = np.concatenate(candidates, -1), points.shape[1]
    best = leaks.argmin(-1)[..., None]
    shares = np.concatenate([np.zeros_like(candidates[0]), share, np.zeros_like(candidates[0])], -1)
    step = np.take_along_axis(shares, best, -1)
    start = np.concatenate([range(count), range(count - 1), range(count)]).astype(int)[best]
    values = np.take_along_axis(points, start, 1)
    after = np.take_along_axis(points, np.minimum(start + 1, count - 1), 1)
    values = np.where(step > 0, values + step * (after - values), values)
    is_never = np.isinf(np.take_along_axis(leaks, best, -1))
    is_bound = best[..., 0] >= 2 * count - 1
    values[..., ACCURACY_AT] = np.where(is_bound, values[..., ACCURACY_AT], accuracies)
    return np.where(is_never, np.nan, values), is_bound


def undefended_measures(rows: Sequence[BenchRow], measured: Measures) -> dict[int, Measures]:
    """Return what the first undefended variant has by seed.

    `measured` has the rows in the axis before the last. RunError where a row has no accuracy or no
    bits, or a seed no undefended row.
    """
    for column in (ACCURACY, BITS):
        if np.isnan(measured[..., POSITIONS[column.key]]).any():
            raise RunError(f"{BENCH_FILE}: a row has no {column.key!r}; bench it again")
    first = next((row.variant for row in rows if row.undefended), None)
    undefended = {
        row.seed: measured[..., number, :]
        for number, row in enumerate(rows)
        if row.undefended and row.variant == first
    }
    for seed in sorted({row.seed for row in rows} - undefended.keys()):
        raise RunError(
            f"{BENCH_FILE} has no undefended row of seed {seed}, whose accuracy the others are "
            "matched to; bench a variant without cel.kind and defence.name with that seed"
        )
    return undefended


def make_curves(rows: Sequence[BenchRow], measured: Float[np.ndarray, "S R K"]) -> Curves:
    """Make the curve of each variant and seed.

    A sweep that begins at the undefended net (`anchored`) has that as its point of strength 0,
    unless 0 was swept. RunError where a row lacks what is needed, or a seed its undefended row.
    """
    undefended = undefended_measures(rows, measured)
    groups: dict[str, dict[int, list[int]]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(row.variant, {}).setdefault(row.seed, []).append(number)
    curves: Curves = {}
    for variant, seeds in groups.items():
        for seed, numbers in seeds.items():
            numbers.sort(key=lambda number: rows[number].strength or 0.0)
            points, bare = measured[:, numbers], undefended[seed]
            weakest = rows[numbers[0]].strength or 0.0
            if weakest > 0 and all(rows[number].anchored for number in numbers):
                start = bare.copy()
                constant = points[:, 0, CONSTANT_MEASURES]
                is_known = ~np.isnan(constant)
                start[:, CONSTANT_MEASURES] = np.where(
                    is_known, constant, start[:, CONSTANT_MEASURES]
                )
                points = np.concatenate([start[:, None], points], 1)
            curves.setdefault(variant, {})[seed] = Curve(points, bare)
    return curves


def match_curves(curves: Curves, loss: float) -> dict[str, Matches]:
    """Return what each variant has `loss` points of accuracy below the undefended net, by seed."""

    def match(curve: Curve) -> Match:
        target = curve.undefended[:, ACCURACY_AT, None] - loss / 100
        values, is_bound = read_curve(curve.points, target)
        return Match(values[:, 0], bool(is_bound[0, 0]))

    return map_curves(curves, match)


def average_curves(curves: Curves, most: float) -> dict[str, Matches]:
    """Return by variant and seed the mean bits and MSE over losses of 0 to `most` points.

    The area under a curve over its width. At each of 101 losses a defender has the fewest bits that
    the curve reaches, or those of the undefended net, which is always there to take, and the MSE
    of the same net; no MSE where one of them has none.
    """
    losses = np.linspace(0, most / 100, GRID)
    shown = [POSITIONS[column.key] for column in (BITS, MSE)]

    def average(curve: Curve) -> Match:
        bare = curve.undefended[:, None]
        reached, _ = read_curve(curve.points, bare[..., ACCURACY_AT] - losses)
        helps = reached[..., BITS_AT] < bare[..., BITS_AT]  # NaN does not
        values = np.full_like(curve.undefended, np.nan)
        values[:, shown] = np.where(helps[..., None], reached, bare)[..., shown].mean(1)
        return Match(values)

    return map_curves(curves, average)


def map_curves(curves: Curves, read: Callable[[Curve], Match]) -> dict[str, Matches]:
    """Return what is read of each curve, by variant and seed."""
    return {
        variant: {seed: read(curve) for seed, curve in seeds.items()}
        for variant, seeds in curves.items()
    }


def paired_differences(
    ours: Matches, reference: Matches, key: str
) -> dict[int, Float[np.ndarray, " S"]]:
    """Return ours less reference of one measure, by seed, where both have it."""
    common = sorted(ours.keys() & reference.keys())
    gaps = {seed: ours[seed].read(key) - reference[seed].read(key) for seed in common}
    return {seed: gap for seed, gap in gaps.items() if not np.isnan(gap[0])}
