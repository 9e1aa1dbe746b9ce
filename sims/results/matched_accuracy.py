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

BITS = "bits-beyond-label"
OF_THE_METHOD = ("train-step-ratio", "attention-share")
"""Measures that do not fade with the strength: at strength 0 they are those of the first swept."""
MEASURES = (
    "accuracy",
    BITS,
    "identification-optimal",
    "mse",
    "certificate-bits",
    "certificate-bits-within-class",
    "within-class-spread",
    "encoder-parameters",
    "flops-per-inference",
    "bytes-per-inference",
    *OF_THE_METHOD,
)

GRID = 101
"""Losses of accuracy at which a curve's area is read."""

Row = Mapping[str, object]
Values = Mapping[str, float]
"""The measures of one point, those that were taken; accuracy (a share) and bits always are."""
Curve = Sequence[Values]
"""One variant's points of one seed, in the order of the strengths."""


class Match(NamedTuple):
    """A curve's measures at an accuracy; `bound`: more accurate than that, so bits are at most."""

    values: Values
    bound: bool


Matches = dict[int, Match | None]
"""By seed; None: the variant is never this accurate."""


def bits_at(curve: Curve, accuracy: float) -> Match | None:
    """Return the curve's fewest bits at `accuracy` (a share) or above; see `interpolate_curve`."""
    if not curve:
        return None
    keys, found, bound = interpolate_curve(curve, [accuracy])
    if np.isnan(found[0, keys.index(BITS)]):
        return None
    told = {k: float(v) for k, v in zip(keys, found[0], strict=True) if not np.isnan(v)}
    return Match(told if bound[0] else told | {"accuracy": accuracy}, bool(bound[0]))


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
    asked, has = np.asarray(accuracies)[None, :], table[:, keys.index("accuracy")][:, None]
    one, two = has[:-1], has[1:]
    inside = (np.minimum(one, two) < asked) & (asked < np.maximum(one, two))
    share = (asked - one) / np.where(inside, two - one, 1)
    between = table[:-1, None] + share[..., None] * (table[1:] - table[:-1])[:, None]
    points = np.broadcast_to(table[:, None], (len(table), asked.shape[1], len(keys)))
    values = np.concatenate([points, between, points])  # of equals, a point there comes first
    counts = np.concatenate([has == asked, inside, has > asked])
    bits = np.where(counts, values[..., keys.index(BITS)], np.inf)
    best = bits.argmin(0)
    rows = np.arange(asked.shape[1])
    found = np.where(np.isinf(bits[best, rows])[:, None], np.nan, values[best, rows])
    return keys, found, best >= len(counts) - len(table)


def match_rows(rows: Sequence[Row], loss: float) -> dict[str, Matches]:
    """Return each variant's match by seed, `loss` points of accuracy below the undefended net.

    RunError when a row lacks what is needed, or a seed has no undefended row.
    """
    bare = undefended_rows(rows)
    found: dict[str, Matches] = {}
    for (variant, seed), curve in make_curves(rows, bare).items():
        found.setdefault(variant, {})[seed] = bits_at(curve, bare[seed]["accuracy"] - loss / 100)
    return found


def curve_areas(rows: Sequence[Row], most: float) -> dict[str, dict[int, Values]]:
    """Return by variant and seed the mean bits and MSE over losses of 0 to `most` points.

    The area under a curve over its width. At each of 101 losses a defender has the fewest bits that
    the curve reaches, or those of the undefended net, which is always there to take, and the MSE
    of the same net; no MSE where one of them has none. RunError as `match_rows`.
    """
    bare = undefended_rows(rows)
    losses = np.linspace(0, most / 100, GRID)
    found: dict[str, dict[int, Values]] = {}
    for (variant, seed), curve in make_curves(rows, bare).items():
        top = bare[seed]
        keys, reached, _ = interpolate_curve(curve, list(top["accuracy"] - losses))
        helps = reached[:, keys.index(BITS)] < top[BITS]  # NaN does not
        mean = {
            key: float(np.where(helps, reached[:, keys.index(key)], top[key]).mean())
            for key in (BITS, "mse")
            if key in top and key in keys
        }
        found.setdefault(variant, {})[seed] = {k: v for k, v in mean.items() if not np.isnan(v)}
    return found


def undefended_rows(rows: Iterable[Row]) -> dict[int, Values]:
    """Return the measures of the first undefended variant by seed; RunError if a seed has none."""
    found: dict[int, Values] = {}
    first: object = None
    seeds: set[int] = set()
    for row in rows:
        seed = row_seed(row)
        seeds.add(seed)
        if _needed(row, "undefended") and first in (None, row["variant"]):
            first = row["variant"]
            found[seed] = row_values(row)
    for seed in sorted(seeds - found.keys()):
        raise RunError(
            f"bench.json has no undefended row of seed {seed}, whose accuracy the others are "
            "matched to; bench a variant without cel.kind and defence.name with that seed"
        )
    return found


def make_curves(rows: Iterable[Row], bare: Mapping[int, Values]) -> dict[tuple[str, int], Curve]:
    """Return the curve of each variant and seed.

    A sweep that begins at the undefended net (`anchored`) has that as its point of strength 0,
    unless 0 was swept.
    """
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((str(_needed(row, "variant")), row_seed(row)), []).append(row)
    found: dict[tuple[str, int], Curve] = {}
    for (variant, seed), group in groups.items():
        ordered = sorted(group, key=row_strength)
        points = [row_values(row) for row in ordered]
        if all(_needed(row, "anchored") for row in group) and row_strength(ordered[0]) > 0:
            own = {key: points[0][key] for key in OF_THE_METHOD if key in points[0]}
            points.insert(0, {**bare[seed], **own})
        found[variant, seed] = points
    return found


def row_values(row: Row) -> Values:
    """Return a row's measures; RunError when it has no accuracy or bits, or one is no number."""
    found: dict[str, float] = {}
    for key in MEASURES:
        value = row.get(key)
        if value is None and key not in ("accuracy", BITS):
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RunError(f"bench.json: {key} is {value!r}, must be a number; bench it again")
        found[key] = float(value)
    return found


def row_seed(row: Row) -> int:
    """Return a row's training seed."""
    return int(str(_needed(row, "seed")))


def row_strength(row: Row) -> float:
    """Return a row's strength; a variant without a sweep has one point, wherever it lies."""
    value = row.get("strength")
    return 0.0 if value is None else float(str(value))


def paired_differences(ours: Matches, theirs: Matches, key: str) -> dict[int, float]:
    """Return ours less theirs of one measure, by seed, where both have it."""
    found = {}
    for seed in ours.keys() & theirs.keys():
        mine, other = ours[seed], theirs[seed]
        if mine and other and key in mine.values and key in other.values:
            found[seed] = mine.values[key] - other.values[key]
    return found


def _needed(row: Row, key: str) -> object:
    if key not in row:
        raise RunError(
            f"bench.json: a row has no {key!r}; run the same `fedcel bench` again, "
            "finished cells are kept"
        )
    return row[key]
