"""Charts of a report show the numbers."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedcel.attacks import AttackRow
from fedcel.settings import Settings
from sims.report import figures
from sims.report.book import read_book
from sims.report.chart import Chart, choose_look
from sims.report.summary import FinishedRun, Summary
from sims.results.columns import ACCURACY, BITS
from sims.results.intervals import estimate
from sims.results.records import (
    CellAttack,
    ReliabilityBins,
    RoundEvent,
    RunResult,
)
from tests.sims.report.made import cell

Make = Callable[..., Path]
TradeOff = Callable[[Sequence[Summary], figures.Looks], Chart]
NO_ENDS = (None, None, None, "")
"""Of a point without intervals and without a name."""


def trade_off(make: TradeOff, summaries: Sequence[Summary]) -> Chart:
    """Return a chart of accuracy against a measure."""
    return make(summaries, figures.choose_looks(summaries))


def points(chart: Chart) -> dict[str, list[tuple[float, float]]]:
    return {s.name: [point[:2] for point in s.points] for s in chart.series}


def marks(chart: Chart) -> dict[str, float]:
    """Return the marks by name."""
    return {mark.name: mark.at for mark in chart.marks}


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (figures.make_bits_trade_off, {"label only": 0, "all of it": 5.3}),
        (figures.make_mse_trade_off, {"label only": 0.0434, "mean image": 0.0737}),
    ],
)
def test_marks_and_points(
    make_bench: Make,
    make: TradeOff,
    wanted: dict[str, float],
) -> None:
    """What needs no attack is a named line; each variant is at its numbers, 0 bits are in view."""
    chart = trade_off(make, read_book(make_bench()).summaries)
    assert marks(chart) == pytest.approx(wanted)
    placed = np.array([place for (place,) in points(chart).values()])
    np.testing.assert_allclose(placed[:, 1], [95.1, 94.8, 96.2])
    if make is figures.make_bits_trade_off:
        np.testing.assert_allclose(placed[:, 0], [4.46, 0.54, 0.67])
        low, high = chart.axis["xlim"]
        assert low == pytest.approx(-0.06 * high) and high > 5.3


def test_intervals_are_those_of_the_measures() -> None:
    """In the units of the axes; none where there is none."""
    seeds = cell("a", 0.9, [1.0, 2.0, 3.0])
    half = estimate([1.0, 2.0, 3.0]).half
    assert half is not None
    point = figures.place_point("a", BITS, seeds.measure(BITS), estimate([0.8]))
    assert point is not None
    assert point[:3] == pytest.approx((2.0, 80.0, half))
    assert point[3:] == (None, None, "a")
    right = figures.place_point("a", ACCURACY, estimate([0.7, 0.8, 0.9]), estimate([0.8]))
    assert right is not None and right.x_half == pytest.approx(10 * half)
    assert figures.place_point("a", BITS, estimate([]), estimate([0.8])) is None


def test_only_who_was_attacked_is_drawn() -> None:
    """One cell with a trained attack is enough, and the others are left out; none is no chart."""
    assert not trade_off(figures.make_mse_trade_off, [cell("none", 0.9, 2.0)]).series
    attacked = cell("cluster", 0.948, 0.2, attack=CellAttack(attack="decoder", mse=0.04))
    chart = trade_off(figures.make_mse_trade_off, [cell("none", 0.951, 4.46), attacked])
    assert points(chart) == {"cluster": [pytest.approx((0.04, 94.8))]}


@pytest.mark.parametrize("accuracy", [1.0, 0.98, 0.5])
def test_the_axis_of_a_single_point_ends_at_all_of_it(accuracy: float) -> None:
    """Hardly more than 100 % is in view, and the point is."""
    chart = trade_off(figures.make_bits_trade_off, [cell("none", accuracy, 5.0)])
    low, high = chart.axis["ylim"]
    assert low < 100 * accuracy < high < 100.1


def test_strengths_are_joined_in_their_order() -> None:
    """Not in the order in which they are listed; each point has its own name."""
    swept = [cell("v", 1 - n / 10, 5 - n, label=f"v, {n}", strength=n) for n in (1.0, 0.3, 3.0)]
    chart = trade_off(figures.make_bits_trade_off, swept)
    (series,) = chart.series
    np.testing.assert_allclose(
        [point[:2] for point in series.points], [(4.7, 97), (4, 90), (2, 70)]
    )
    assert (series.name, [point.name for point in series.points]) == (
        "v",
        ["v, 0.3", "v, 1.0", "v, 3.0"],
    )
    assert list(figures.choose_looks(swept)) == ["v"]


def test_a_collapsed_net_does_not_press_the_others_into_a_line() -> None:
    """It is named at the foot, with its accuracy; without an undefended net all are drawn."""
    bare, near, far = cell("none", 0.9, 0.5), cell("a", 0.85, 2.0), cell("b", 0.3, 1.0)
    chart = trade_off(figures.make_bits_trade_off, [bare, near, far])
    assert chart.axis["ylim"] == pytest.approx((78, 92))
    assert [(note.text, note.x) for note in chart.notes] == [("↓ 30 %", 1.0)]
    for summaries in ([bare, near], [near, far]):
        chart = trade_off(figures.make_bits_trade_off, summaries)
        assert not chart.notes
        low, high = chart.axis["ylim"]
        assert all(low < 100 * (s.row.accuracy or 0) < high for s in summaries)


def test_trained_attacks_have_their_learning_curve(make_bench: Make) -> None:
    """Mean and range over attack seeds; a training that ended early has no part in the rest."""
    summary, *_ = read_book(make_bench(seeds=1)).summaries
    looks = figures.choose_looks([summary])
    attacks = tuple(
        AttackRow(attack="decoder", learning_curve=curve)
        for curve in ([(1, 0.4), (2, 0.2)], [(1, 0.2)])
    )
    run = replace(summary.runs[0], attacks=attacks)
    chart = figures.make_learning_curve([replace(summary, runs=(run,))], looks)
    (series,) = chart.series
    assert series.name == f"{summary.label}, decoder"
    assert series.points[0] == (1, pytest.approx(0.3), None, None, (0.2, 0.4), "")
    assert series.points[1][:2] == (2, 0.2)
    other = attacks[1].model_copy(update={"knowledge": "training-size"})
    held_out = attacks[0].model_copy(update={"knowledge": "held-out"})
    apart = replace(run, attacks=(held_out, other))
    chart = figures.make_learning_curve([replace(summary, runs=(apart,))], looks)
    names = [f"{summary.label}, decoder, {name}" for name in ("held-out", "training-size")]
    assert [series.name for series in chart.series] == names
    bare = replace(run, attacks=())
    assert not figures.make_learning_curve([replace(summary, runs=(bare,))], looks).series


def test_curves_mark_burn_in_and_limits(make_bench: Make) -> None:
    """0.8 of 41 rounds, rounded up; a log scale leaves out what is not above 0."""
    summaries = read_book(make_bench(seeds=2)).summaries
    looks = figures.choose_looks(summaries)
    chart = figures.make_curve(summaries, looks, figures.CURVES["spread"])
    assert marks(chart) == {"burn-in ends": 33}
    assert chart.axis["yscale"] == "log"
    events = tuple(
        RoundEvent(round=n, r_hat=1.0 + n, within_class_spread=s)
        for n, s in enumerate((0.0, 0.5, 0.25))
    )
    run = replace(summaries[0].runs[0], events=events)
    other = replace(run, events=tuple(e.model_copy(update={"r_hat": 4.0}) for e in events))
    few = [replace(summaries[0], runs=(run, other))]
    assert points(figures.make_curve(few, looks, figures.CURVES["spread"])) == {
        "none": [(1, 0.5), (2, 0.25)]
    }
    chart = figures.make_curve(few, looks, figures.CURVES["r-hat"])
    (first, *_) = chart.series[0].points
    assert first == (0, 2.5, None, None, (1.0, 4.0), "")
    assert figures.MAX_R_HAT in marks(chart).values()


def test_nothing_to_draw() -> None:
    """No numbers, no chart."""
    empty = [cell("v", 0.9, None)]
    looks = figures.choose_looks(empty)
    charts = [figures.make_curve(empty, looks, curve) for curve in figures.CURVES.values()]
    charts += [
        trade_off(figures.make_bits_trade_off, empty),
        figures.make_reliability(empty, looks),
    ]
    assert not any(chart.series for chart in charts)


def test_empty_bins_are_left_out(outcome: Callable[..., RunResult]) -> None:
    """A bin without samples has no point; the point model's markers are open."""
    bins = ReliabilityBins(confidence=(0.1, 0.9), accuracy=(0.0, 0.8), count=(0, 5))
    result = outcome(samples=0, reliability={"posterior": bins, "point": bins})
    run = FinishedRun(Settings(), (), result, (), {}, {})
    chart = figures.make_reliability([replace(cell("v", 0.9, 1.0), runs=(run,))],
                                     {"v": choose_look(3)})  # fmt: skip
    average, point, _ = chart.series
    assert (average.name, average.points) == (
        "v, last model (no samples kept)",
        [(0.9, 0.8, *NO_ENDS)],
    )
    assert average.look == choose_look(3)
    assert point.name == "v, point model" and point.look["fillstyle"] == "none"
