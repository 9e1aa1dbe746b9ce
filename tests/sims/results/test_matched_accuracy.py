"""Matched accuracy: curves drawn by hand, and what must hold for every curve."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcel.errors import RunError
from sims.results import matched_accuracy
from sims.results.columns import POSITIONS
from sims.results.intervals import measure_rows
from sims.results.matched_accuracy import Matches, paired_differences, read_curve
from sims.results.records import BenchRow
from tests.sims.results.made import attack, make_row

BITS = "bits-beyond-label"
Point = dict[str, float]


class Found(NamedTuple):
    """Measures at an accuracy by their keys."""

    values: Point
    is_bound: bool


def point(accuracy: float, bits: float, **more: float) -> Point:
    return {"accuracy": accuracy, BITS: bits, **more}


def name_measures(values: np.ndarray) -> Point:
    """Return measures by their keys, less those that are not there."""
    named = zip(POSITIONS, values.tolist(), strict=True)
    return {key: value for key, value in named if not np.isnan(value)}


def row(
    variant: str,
    strength: float | None,
    accuracy: float | None,
    bits: float | None,
    seed: int = 0,
    *,
    mse: float | None = None,
    **more: object,
) -> BenchRow:
    """Return a row of bench.json, held to an attack where it has an error."""
    worst = None if mse is None else attack("decoder", mse)
    return make_row(variant, strength, accuracy=accuracy, bits=bits, seed=seed, worst=worst, **more)


def make_curves(rows: Sequence[BenchRow]) -> matched_accuracy.Curves:
    return matched_accuracy.make_curves(rows, measure_rows(rows, {}))


def match_rows(rows: Sequence[BenchRow], loss: float) -> dict[str, Matches]:
    return matched_accuracy.match_curves(make_curves(rows), loss)


def curve_areas(rows: Sequence[BenchRow], most: float) -> dict[str, dict[int, Point]]:
    areas = matched_accuracy.average_curves(make_curves(rows), most)
    return {
        name: {seed: name_measures(area.values[0]) for seed, area in seeds.items()}
        for name, seeds in areas.items()
    }


def bits_at(curve: Sequence[Point], accuracy: float) -> Found | None:
    points = [[point.get(key, np.nan) for key in POSITIONS] for point in curve]
    values, is_bound = read_curve(np.array([points]), np.array([[accuracy]]))
    named = name_measures(values[0, 0])
    return Found(named, bool(is_bound[0, 0])) if named else None


def curve_of(rows: Sequence[BenchRow], variant: str) -> list[Point]:
    return [name_measures(values) for values in make_curves(rows)[variant][0].points[0]]


def test_between_two_strengths_by_hand() -> None:
    """A quarter of the way in accuracy is a quarter of the way in every measure both have."""
    curve = [point(0.9, 4.0, mse=0.02, a=1.0), point(0.8, 2.0, mse=0.06, b=1.0)]
    found = bits_at(curve, 0.875)
    assert found is not None
    assert not found.is_bound
    assert found.values == pytest.approx(point(0.875, 3.5, mse=0.03))
    assert found.values["accuracy"] == 0.875


@pytest.mark.parametrize(
    ("points", "accuracy", "bits", "is_bound"),
    [
        ([(0.9, 4.0), (0.8, 2.0), (0.9, 1.0), (0.8, 0.0)], 0.85, 0.5, False),  # crosses three times
        ([(0.9, 4.0), (0.8, 2.0), (0.7, 3.0)], 0.8, 2.0, False),  # exactly at a point
        ([(0.9, 4.0), (0.8, 3.0), (0.8, 1.0)], 0.8, 1.0, False),  # exactly at two
        ([(0.9, 4.0), (0.88, 2.0), (0.89, 3.0)], 0.8, 2.0, True),  # all are more accurate
        ([(0.9, 4.0), (0.95, 1.0)], 0.9, 1.0, True),  # begins there, and only gets better
        ([(0.9, 4.0), (0.95, 1.0), (0.7, 0.0)], 0.9, 0.8, False),
        ([(0.95, 3.0)], 0.9, 3.0, True),
    ],
)
def test_which_point_counts(
    points: list[tuple[float, float]], accuracy: float, bits: float, is_bound: bool
) -> None:
    """The fewest bits at this accuracy or above; `is_bound` where that is at a higher accuracy."""
    found = bits_at([point(*pair) for pair in points], accuracy)
    assert found is not None
    assert found.values[BITS] == pytest.approx(bits)
    assert found.is_bound is is_bound


def test_never_this_accurate() -> None:
    """No value, rather than the nearest."""
    assert bits_at([point(0.9, 4.0), point(0.8, 2.0)], 0.91) is None


UNIT = st.floats(0, 1, allow_subnormal=False)
CURVES = st.lists(st.builds(point, UNIT, st.floats(0, 8)), min_size=1, max_size=6)


@settings(deadline=None)
@given(CURVES, UNIT, UNIT)
def test_a_larger_loss_never_leaks_more(
    curve: list[dict[str, float]], one: float, two: float
) -> None:
    """And there is a value exactly when some point is accurate enough."""
    low, high = sorted((one, two))
    lax, strict = bits_at(curve, low), bits_at(curve, high)
    assert (strict is not None) == (max(p["accuracy"] for p in curve) >= high)
    if strict is not None:
        assert lax is not None
        assert lax.values[BITS] <= strict.values[BITS] + 1e-9


@settings(deadline=None)
@given(CURVES, UNIT)
def test_no_less_than_the_best_point_and_at_the_accuracy(
    curve: list[dict[str, float]], accuracy: float
) -> None:
    """Interpolation invents no bits below all points; what is no bound is at the accuracy."""
    found = bits_at(curve, accuracy)
    if found is None:
        return
    assert min(p[BITS] for p in curve) - 1e-9 <= found.values[BITS]
    assert found.values[BITS] <= max(p[BITS] for p in curve) + 1e-9
    assert found.is_bound == (found.values["accuracy"] > accuracy)
    assert found.is_bound or found.values["accuracy"] == accuracy


@settings(deadline=None)
@given(CURVES, UNIT)
def test_the_direction_of_the_sweep_does_not_matter(
    curve: list[dict[str, float]], accuracy: float
) -> None:
    """From weak to strong or back."""
    one, two = bits_at(curve, accuracy), bits_at(curve[::-1], accuracy)
    assert (one is None) == (two is None)
    if one and two:
        assert one.values[BITS] == pytest.approx(two.values[BITS], abs=1e-9)


ROWS = [
    row("none", None, 0.95, 5.0, mse=0.02, **{"train-step-ratio": 1.0}),
    row("swept", 3.0, 0.85, 1.0, **{"train-step-ratio": 3.0}),
    row("swept", 1.0, 0.93, 2.0, **{"train-step-ratio": 3.0}),
    row("own", 1.0, 0.94, 1.5),
]


def test_rows_become_curves_in_the_order_of_their_strengths() -> None:
    """With the undefended net as the beginning of a sweep, at the method's own cost."""
    swept = curve_of(ROWS, "swept")
    assert [p[BITS] for p in swept] == [5.0, 2.0, 1.0]
    assert [p["train-step-ratio"] for p in swept] == [3.0, 3.0, 3.0]
    assert "mse" in swept[0] and "mse" not in swept[1]
    assert [p[BITS] for p in curve_of(ROWS, "own")] == [1.5]
    zero = [*ROWS, row("swept", 0.0, 0.951, 4.9)]
    assert [p[BITS] for p in curve_of(zero, "swept")] == [4.9, 2.0, 1.0]


def test_each_seed_is_matched_to_its_own_undefended_net() -> None:
    """Two points below .95 is .93, two below .97 is .95; the row `own` is below that."""
    more = [row("none", None, 0.97, 5.0, 1), row("swept", 1.0, 0.96, 3.0, 1)]
    more += [row("swept", 3.0, 0.94, 2.0, 1), row("own", 1.0, 0.94, 1.5, 1)]
    found = match_rows([*ROWS, *more], 2.0)
    one, two = (name_measures(found["swept"][seed].values[0]) for seed in (0, 1))
    assert one[BITS] == pytest.approx(2.0) and two[BITS] == pytest.approx(2.5)
    assert name_measures(found["own"][0].values[0]) == point(0.94, 1.5)
    assert found["own"][0].is_bound and not found["own"][1].is_reached
    assert paired_differences(found["swept"], found["own"], BITS) == {0: pytest.approx([0.5])}
    assert paired_differences(found["swept"], found["own"], "mse") == {}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([row("own", 1.0, 0.9, 1.0, 3)], "no undefended row of seed 3"),
        ([row("none", None, None, 1.0)], "no 'accuracy'"),
        ([row("none", None, 0.9, None)], "no 'bits-beyond-label'"),
    ],
)
def test_rows_that_cannot_be_compared(rows: list[BenchRow], words: str) -> None:
    with pytest.raises(RunError, match=words):
        match_rows(rows, 0.0)


def test_the_first_undefended_variant_is_the_reference() -> None:
    """A second one is a row like the others."""
    rows = [*ROWS, row("other", None, 0.5, 1.0, undefended=True)]
    bare = matched_accuracy.undefended_measures(rows, measure_rows(rows, {})[0])
    assert name_measures(bare[0])["accuracy"] == 0.95


def test_an_area_by_hand() -> None:
    """Straight from 4 bits to none over ten points: 2 on average, 3 over the first five."""
    rows = [row("none", None, 0.9, 4.0), row("swept", 1.0, 0.8, 0.0)]
    assert curve_areas(rows, 10)["swept"] == {0: {BITS: pytest.approx(2.0)}}
    assert curve_areas(rows, 5)["swept"] == {0: {BITS: pytest.approx(3.0)}}
    assert curve_areas(rows, 5)["none"] == {0: {BITS: pytest.approx(4.0)}}


def test_the_error_along_a_curve_is_that_of_the_net_chosen_by_its_bits() -> None:
    """.02 to .06 over ten points is .04; worse in bits than the undefended net, it is .02."""
    rows = [row("none", None, 0.9, 4.0, mse=0.02), row("swept", 1.0, 0.8, 0.0, mse=0.06)]
    worse = row("own", 1.0, 0.95, 5.0, mse=0.06)
    found = curve_areas([*rows, worse], 10)
    assert found["swept"][0]["mse"] == pytest.approx(0.04)
    assert found["own"][0]["mse"] == pytest.approx(0.02)
    assert "mse" not in curve_areas([rows[0], row("swept", 1.0, 0.8, 0.0)], 10)["swept"][0]


def test_where_a_curve_does_not_reach_the_undefended_net_counts() -> None:
    """Alone at five points' loss: nothing is gained before, and a worse curve never counts."""
    rows = [row("none", None, 0.9, 4.0), row("alone", 1.0, 0.85, 1.0), row("worse", 1.0, 0.85, 5.0)]
    found = curve_areas(rows, 10)
    assert found["alone"][0][BITS] == pytest.approx((50 * 4 + 51 * 1) / 101)
    assert found["worse"][0][BITS] == pytest.approx(4.0)
