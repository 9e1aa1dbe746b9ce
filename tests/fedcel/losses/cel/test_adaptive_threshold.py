"""The adaptive threshold: which way it moves, how fast, how far, and where it ends."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcel.losses.cel import CEL, CutShape
from fedcel.losses.cel.adaptive_threshold import (
    MAX_LOG_STEP,
    MAX_RATIO,
    NEW_ERROR_WEIGHT,
    ThresholdControl,
    init_control,
    next_threshold,
)
from fedcel.losses.cel.spread_penalties import THRESHOLD_SHARE
from tests.fedcel.losses.single import options

SPREAD = options(kind="plain", penalty="log", target="spread", goal=0.5)
ACCURACY = options(kind="plain", penalty="log", target="accuracy", goal=0.9)


@pytest.mark.parametrize("power", [0.4, 0.7, 1.0])
def test_the_closed_loop_reaches_the_spread(power: float) -> None:
    """A spread 0.8 tau^power that follows with a lag of three rounds ends at the goal."""
    control, spread = ThresholdControl(0.1), 0.3
    for _ in range(300):
        spread += (0.8 * control.threshold**power - spread) / 3
        control = next_threshold(control, {"spread": spread, "accuracy": 0.5}, SPREAD)
    assert spread == pytest.approx(0.5, rel=0.01)
    assert control.threshold == pytest.approx((0.5 / 0.8) ** (1 / power), rel=0.05)


def test_the_closed_loop_reaches_the_accuracy() -> None:
    """An accuracy that rises with tau, as 0.95 + 0.03 ln tau, ends at the goal."""
    control = ThresholdControl(1.0)
    for _ in range(200):
        told = {"spread": 0.5, "accuracy": 0.95 + 0.03 * math.log(control.threshold)}
        control = next_threshold(control, told, ACCURACY)
    assert control.threshold == pytest.approx(math.exp(-0.05 / 0.03), rel=0.01)


def test_one_round_by_hand() -> None:
    """A point of accuracy too little is half the full error, smoothed to NEW_ERROR_WEIGHT / 2."""
    moved = next_threshold(ThresholdControl(0.2), {"spread": 0.2, "accuracy": 0.89}, ACCURACY)
    assert moved.error == pytest.approx(NEW_ERROR_WEIGHT / 2)
    assert moved.threshold == pytest.approx(0.2 * math.exp(MAX_LOG_STEP * NEW_ERROR_WEIGHT / 2))


@given(
    st.floats(1e-9, 1e9),
    st.floats(-1, 1),
    st.floats(-1e300, 1e300),
    st.floats(0, 1),
    st.sampled_from([SPREAD, ACCURACY]),
)
def test_whatever_is_told_a_round_moves_it_by_the_rate_at_most(
    threshold: float, error: float, spread: float, accuracy: float, cel: CEL
) -> None:
    """Spreads that are absurd, negative or 0 included; the error stays in [-1, 1]."""
    told = {"spread": spread, "accuracy": accuracy}
    moved = next_threshold(ThresholdControl(threshold, error), told, cel)
    assert abs(math.log(moved.threshold / threshold)) <= MAX_LOG_STEP + 1e-9
    assert abs(moved.error) <= 1


@given(st.floats(0.01, 100))
def test_it_stops_where_moving_on_would_change_nothing(spread: float) -> None:
    """A goal that is never met leaves tau within MAX_RATIO of the spread."""
    for accuracy, end in ((0.0, MAX_RATIO * spread), (1.0, spread / MAX_RATIO)):
        control = ThresholdControl(spread)
        for _ in range(100):
            control = next_threshold(control, {"spread": spread, "accuracy": accuracy}, ACCURACY)
        assert control.threshold == pytest.approx(end)


def test_it_starts_at_the_tau_of_the_penalty() -> None:
    """Set, or tied to the noise; nothing where tau is fixed or there is no loss."""
    cut = CutShape(10, 64, 0.3)
    assert init_control(SPREAD, cut) == ThresholdControl(THRESHOLD_SHARE * 0.3**2 * 64)
    set_to = SPREAD.model_copy(update={"threshold": 0.7})
    assert init_control(set_to, cut) == ThresholdControl(0.7)
    assert init_control(options(kind="plain"), cut) is None
    assert init_control(options(target="spread"), cut) is None


def test_a_loss_that_measures_no_spread_is_named() -> None:
    """The threshold stands still, and not without a word."""
    with pytest.warns(UserWarning, match="told no 'spread'.*'plain' must measure it"):
        assert next_threshold(ThresholdControl(1.0), {"accuracy": 0.9}, SPREAD) == ThresholdControl(
            1.0
        )
