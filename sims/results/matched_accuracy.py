"""Defences at equal accuracy: each variant's sweep read where it costs what it may cost.

A single point says little: more strength always leaks less and always costs. So a variant is the
curve through its strengths, each seed has its own, and curves are compared where the accuracy is
that of the undefended net of the same seed less an allowed loss. Differences are paired by seed.
"""

import math
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


def find_matches(curves: Sequence[Curve], accuracies: Sequence[float]) -> list[Match | None]:
    """Return each curve's fewest bits at its accuracy (a share) or above; see `read_curves`."""
    if not curves or not curves[0]:
        return [None for _ in curves]
    keys, values, is_bound = read_curves(curves, np.asarray(accuracies)[:, None])
    bits = keys.index(BITS.key)
    matches: list[Match | None] = []
    for accuracy, row, bound in zip(
        accuracies, values[:, 0].tolist(), is_bound[:, 0].tolist(), strict=True
    ):
        if math.isnan(row[bits]):
            matches.append(None)
            continue
        point = {k: value for k, value in zip(keys, row, strict=True) if not math.isnan(value)}
        matches.append(Match(point if bound else point | {ACCURACY.key: accuracy}, bound))
    return matches


def read_curves(
    curves: Sequence[Curve], accuracies: Float[np.ndarray, "S L"]
) -> tuple[list[str], Float[np.ndarray, "S L K"], Bool[np.ndarray, "S L"]]:
    """Return the K measures' names, their values at L accuracies, and where these are bounds.

    Each of S curves is linear between neighbouring strengths. Where it crosses an accuracy more
    than once, the crossing with the fewest bits counts; where a point more accurate than that leaks
    no more than any crossing, that point does and is a bound. NaN where all points are below, and
    for a measure that a point lacks.

    Args:
        curves: A curve in S samples of images; all have as many points.
        accuracies: Those at which each is read.
    """
    keys = list(dict.fromkeys(key for curve in curves for point in curve for key in point))
    table = np.array(
        [[[point.get(key, np.nan) for key in keys] for point in curve] for curve in curves]
    ).swapaxes(0, 1)[:, :, None]
    actual = table[..., keys.index(ACCURACY.key)]
    first, second = actual[:-1], actual[1:]
    inside = (np.minimum(first, second) < accuracies) & (accuracies < np.maximum(first, second))
    share = (accuracies - first) / np.where(inside, second - first, 1)
    between = table[:-1] + share[..., None] * (table[1:] - table[:-1])
    points = np.broadcast_to(table, (len(table), *accuracies.shape, len(keys)))
    values = np.concatenate([points, between, points])  # of equals, a point there comes first
    counts = np.concatenate([actual == accuracies, inside, actual > accuracies])
    bits = np.where(counts, values[..., keys.index(BITS.key)], np.inf)
    best = bits.argmin(0)[None]
    reached = np.take_along_axis(values, best[..., None], 0)[0]
    is_never = np.isinf(np.take_along_axis(bits, best, 0)[0])
    return keys, np.where(is_never[..., None], np.nan, reached), best[0] >= len(counts) - len(table)


def measure_rows(rows: Iterable[BenchRow]) -> list[Measures]:
    """Return the measures of each row; RunError when one has no accuracy or no bits."""
    measured: list[Measures] = [row_measures(row) for row in rows]
    for row in measured:
        for column in (ACCURACY, BITS):
            if column.key not in row:
                raise RunError(f"{BENCH_FILE}: a row has no {column.key!r}; bench it again")
    return measured


def match_samples(
    rows: Sequence[BenchRow], samples: Sequence[Sequence[Measures]], loss: float
) -> list[dict[str, Matches]]:
    """Return what each variant has `loss` points of accuracy below the undefended net.

    Args:
        rows: A bench's rows.
        samples: Measures of the rows: as measured, or in samples of test images.
        loss: Points of accuracy, 0 or more.

    Returns:
        For each sample, by variant and seed, the measures at that accuracy; None where it is never
        reached.

    Raises:
        RunError: When a row lacks what is needed, or a seed has no undefended row.
    """
    matches: list[dict[str, Matches]] = [{} for _ in samples]
    for (variant, seed), (curves, tops) in _sample_curves(rows, samples).items():
        accuracies = [top[ACCURACY.key] - loss / 100 for top in tops]
        for sample, match in zip(matches, find_matches(curves, accuracies), strict=True):
            sample.setdefault(variant, {})[seed] = match
    return matches


def _sample_curves(
    rows: Sequence[BenchRow], samples: Sequence[Sequence[Measures]]
) -> dict[tuple[str, int], tuple[list[Curve], list[Measures]]]:
    """Return by variant and seed its curve in each sample, and the undefended net's measures."""
    gathered: dict[tuple[str, int], tuple[list[Curve], list[Measures]]] = {}
    for measured in samples:
        undefended = undefended_measures(rows, measured)
        for (variant, seed), curve in make_curves(rows, measured, undefended).items():
            curves, tops = gathered.setdefault((variant, seed), ([], []))
            curves.append(curve)
            tops.append(undefended[seed])
    return gathered


def sample_areas(
    rows: Sequence[BenchRow], samples: Sequence[Sequence[Measures]], most: float
) -> list[dict[str, dict[int, Measures]]]:
    """Return by variant and seed the mean bits and MSE over losses of 0 to `most` points.

    The area under a curve over its width. At each of 101 losses a defender has the fewest bits that
    the curve reaches, or those of the undefended net, which is always there to take, and the MSE
    of the same net; no MSE where one of them has none.

    Args:
        rows: A bench's rows.
        samples: As `match_samples`.
        most: The largest loss, in points above 0.

    Raises:
        RunError: As `match_samples`.
    """
    losses = np.linspace(0, most / 100, GRID)
    areas: list[dict[str, dict[int, Measures]]] = [{} for _ in samples]
    for (variant, seed), (curves, tops) in _sample_curves(rows, samples).items():
        accuracies = np.array([top[ACCURACY.key] for top in tops])[:, None] - losses
        keys, reached, _ = read_curves(curves, accuracies)
        bits = np.array([top[BITS.key] for top in tops])
        helps = reached[..., keys.index(BITS.key)] < bits[:, None]  # NaN does not
        means = {}
        for key in (BITS.key, MSE.key):
            if key in keys:
                bare = np.array([top.get(key, np.nan) for top in tops])
                values = np.where(helps, reached[..., keys.index(key)], bare[:, None])
                means[key] = values.mean(1).tolist()
        for b, (area, top) in enumerate(zip(areas, tops, strict=True)):
            area.setdefault(variant, {})[seed] = {
                key: mean[b]
                for key, mean in means.items()
                if key in top and not math.isnan(mean[b])
            }
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
