"""The charts of a report; one of which nothing is known has no series."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from fedcel.attacks import AttackId
from fedcel.posterior import MAX_R_HAT
from fedcel.settings import MIN_ESS, burn_in_rounds
from sims.report.chart import (
    FAINT,
    Chart,
    Look,
    Mark,
    Note,
    Point,
    Series,
    choose_look,
)
from sims.report.summary import Summary
from sims.report.tables import name_predictor
from sims.results.columns import (
    ACCURACY,
    BITS,
    MSE,
    ORACLE_MSE,
    Column,
)
from sims.results.intervals import Estimate, estimate
from sims.results.records import ReliabilityBins, RoundEvent

MAX_DROP = 12.0
"""Points of accuracy below the undefended net at which a chart ends."""
Looks = Mapping[str, Look]
"""Look of each variant in every chart of a report."""


def choose_looks(summaries: Sequence[Summary]) -> Looks:
    """Return the look of each variant; its strengths share it."""
    variants = dict.fromkeys(s.variant for s in summaries)
    return {variant: choose_look(number) for number, variant in enumerate(variants)}


def make_bits_trade_off(summaries: Sequence[Summary], looks: Looks) -> Chart:
    """Chart accuracy (percent) against bits beyond the label; up and left is better."""
    caps = [s.row.bits_cap for s in summaries if s.row.bits_cap is not None]
    marks = [Mark(0.0, "label only", "--")]
    marks += [Mark(max(caps), "all of it")] if caps else []
    label = "bits beyond the label that leak (less is better)"
    return make_trade_off(summaries, looks, BITS, label=label, marks=marks)


def make_mse_trade_off(summaries: Sequence[Summary], looks: Looks) -> Chart:
    """Chart accuracy (percent) against the worst attack's MSE; up and right is better."""
    rows = [row for s in summaries for row in s.rows]
    guesses = (("label only", "--", ORACLE_MSE.key), ("mean image", ":", "mean-mse"))
    marks = [
        Mark(mean, name, line)
        for name, line, key in guesses
        if (mean := estimate(row.measure(key) for row in rows).mean) is not None
    ]
    label = "MSE of the worst attack that all met (more is better)"
    return make_trade_off(summaries, looks, MSE, label=label, marks=marks)


def make_trade_off(
    summaries: Sequence[Summary],
    looks: Looks,
    column: Column,
    *,
    label: str,
    marks: Sequence[Mark],
) -> Chart:
    """Chart accuracy against a measure, with 95 % intervals; strengths of a variant are joined.

    Points far less accurate than the undefended would press all others into a line: they are left
    out, and an arrow tells where and how far below they are.
    """
    all_series, undefended = list[Series](), list[Point]()
    for variant, look in looks.items():
        of_variant = [s for s in summaries if s.variant == variant]
        of_variant.sort(key=lambda summary: summary.row.strength or 0.0)
        placed = [
            place_point(s.label, column, s.measure(column), s.measure(ACCURACY)) for s in of_variant
        ]
        if points := [point for point in placed if point is not None]:
            row = of_variant[0].row
            all_series.append(Series(row.name, look, points, "marks"))
            undefended += points if row.undefended else []
    points = [point for series in all_series for point in series.points]
    if not points:
        return Chart([], {})
    low = min(point.y - (point.y_half or 0.0) for point in points)
    high = max(point.y + (point.y_half or 0.0) for point in points)
    margin = 0.15 * (high - low) or 1.0
    bottom, top = low - margin, min(high + margin, 100 + 0.02 * (100 - low + margin))
    floor = max((point.y for point in undefended), default=-math.inf) - MAX_DROP
    if min(point.y for point in points) <= floor:
        bottom, top = floor, max(point.y for point in points) + MAX_DROP / 6
    axis: dict[str, Any] = {"xlabel": label, "ylabel": "test accuracy, %", "ylim": (bottom, top)}
    if column != MSE:  # a line at 0 and its name are in view
        xs = [point.x + (point.x_half or 0.0) for point in points]
        right = 1.06 * max(*xs, *(mark.at for mark in marks), 1e-9)
        axis["xlim"] = (-0.06 * right, right)
    notes = [
        Note(f"↓ {point.y:.0f} %", point.x, series.look["color"])
        for series in all_series
        for point in series.points
        if point.y <= floor
    ]
    return Chart(all_series, axis, marks, notes)


def place_point(name: str, column: Column, x: Estimate, y: Estimate) -> Point | None:
    """Return a measure and its accuracy in percent; None where one of them is unknown."""
    if x.mean is None or y.mean is None:
        return None
    x_half, y_half = (
        None if value.half is None else part.scale * value.half
        for part, value in ((column, x), (ACCURACY, y))
    )
    means = column.scale * x.mean, ACCURACY.scale * y.mean
    return Point(*means, x_half, y_half, name=name)


class Curve(NamedTuple):
    """A number of each round that is charted, and the limit that is asked of it."""

    label: str
    value: Callable[[RoundEvent], float | None]
    limit: float | None = None
    is_log: bool = False


CURVES = {
    "accuracy": Curve("validation accuracy", lambda event: event.accuracy),
    "spread": Curve(
        "within-class spread (log)", lambda event: event.within_class_spread, is_log=True
    ),
    "r-hat": Curve("split R-hat", lambda event: event.r_hat, MAX_R_HAT),
    "ess": Curve("bulk ESS", lambda event: event.ess, MIN_ESS),
}


def make_curve(summaries: Sequence[Summary], looks: Looks, curve: Curve) -> Chart:
    """Chart one number over the rounds: mean over seeds, and the range of the seeds as a band.

    A log scale shows what is above 0.
    """
    series = []
    for summary in summaries:
        points = average_points(
            (event.round, number)
            for run in summary.runs
            for event in run.events
            for number in [curve.value(event)]
            if number is not None and (number > 0 or not curve.is_log)
        )
        series += [Series(summary.label, looks[summary.variant], points)] if points else []
    ends = {burn_in_rounds(run.settings) for s in summaries for run in s.runs}
    marks = [Mark(end, "burn-in ends") for end in sorted(ends - {0})]
    marks += [] if curve.limit is None else [Mark(curve.limit, is_level=True)]
    scale = "log" if curve.is_log else "linear"
    return Chart(series, {"xlabel": "round", "ylabel": curve.label, "yscale": scale}, marks)


def average_points(pairs: Iterable[tuple[int, float]]) -> list[Point]:
    """Return mean, lowest and highest of the values at each place."""
    values: dict[int, list[float]] = {}
    for place, value in pairs:
        values.setdefault(place, []).append(value)
    return [
        Point(place, fmean(numbers), band=(min(numbers), max(numbers)))
        for place, numbers in sorted(values.items())
    ]


def make_learning_curve(summaries: Sequence[Summary], looks: Looks) -> Chart:
    """Chart the error of trained attacks on images held out from their training, by epoch.

    Mean over training and attack seeds, and their range as a band. Attacks of other conditions have
    curves of their own; all of one variant share its look. Where trainings ended at other epochs,
    the mean is over those that went on.
    """
    series = []
    for summary in summaries:
        errors: dict[AttackId, list[tuple[int, float]]] = {}
        for attack in (attack for run in summary.runs for attack in run.attacks):
            if attack.learning_curve:
                errors.setdefault(attack.id, []).extend(attack.learning_curve)
        names = name_apart(errors)
        series += [
            Series(f"{summary.label}, {names[key]}", looks[summary.variant], average_points(pairs))
            for key, pairs in errors.items()
        ]
    return Chart(series, {"xlabel": "epoch", "ylabel": "MSE on held-out images"})


def name_apart(attacks: Iterable[AttackId]) -> dict[AttackId, str]:
    """Return the names of attacks, with the conditions in which those of one name differ."""
    keys = list(attacks)
    names = {}
    for key in keys:
        same = [other for other in keys if other.attack == key.attack]
        differing = [
            str(value)
            for place, value in enumerate(key)
            if value not in ("", None) and len({other[place] for other in same}) > 1
        ]
        names[key] = ", ".join([key.attack, *differing])
    return names


def make_reliability(summaries: Sequence[Summary], looks: Looks) -> Chart:
    """Chart accuracy against confidence; markers of the point model are open."""
    series = []
    for summary in summaries:
        result, look = summary.results[0], looks[summary.variant]
        predictors = {
            name_predictor([result]): ("posterior", look),
            "point model": ("point", {**look, "fillstyle": "none", "linestyle": "--"}),
        }
        for name, (key, bin_look) in predictors.items():
            bins = result.reliability.get(key, ReliabilityBins())
            columns = zip(bins.confidence, bins.accuracy, bins.count, strict=False)
            points = [Point(x, y) for x, y, n in columns if n and x is not None and y is not None]
            series += [Series(f"{summary.label}, {name}", bin_look, points)] if points else []
    diagonal = Series("", {"color": FAINT, "linestyle": ":"}, [Point(0, 0), Point(1, 1)])
    limits = {"xlim": (0, 1.04), "ylim": (0, 1.05)}
    axis = {"xlabel": "confidence", "ylabel": "accuracy", **limits}
    return Chart([*series, diagonal] if series else [], axis)
