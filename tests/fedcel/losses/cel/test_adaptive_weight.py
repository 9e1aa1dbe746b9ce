"""The adaptive gamma: which way it moves, how fast, how far, where it ends, and until when."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcel.errors import SettingsError
from fedcel.federation import follow_goal
from fedcel.losses.cel import CEL, WeightControl
from fedcel.losses.cel.adaptive_threshold import NEW_ERROR_WEIGHT
from fedcel.losses.cel.adaptive_weight import FIRST_SHARE, init_control, next_weight
from fedcel.run_parts import (
    build_schedule,
    build_server_parts,
    build_workspace_net,
    init_run_state,
    ramp_losses,
)
from fedcel.settings import parse_settings
from tests.fedcel.losses.single import options

COMMON = {"kind": "plain", "schedule": "target", "warm_up": 5, "ramp": 0.5}
SPREAD = options(**COMMON, target="spread", goal=0.1)
ACCURACY = options(**COMMON, target="accuracy", goal=0.9)
ROUNDS = 50
STEP = 0.9 / 20
"""The largest: from a tenth to 1 in the 20 rounds of the ramp."""
RAW = {
    "rounds": ROUNDS,
    "cel.kind": "plain",
    "cel.schedule": "target",
    "cel.target": "accuracy",
    "cel.goal": 0.9,
    "cel.weight": 2.0,
    "chain.burn-in": 0.8,
}


@pytest.mark.parametrize("power", [0.5, 1.0])
def test_the_closed_loop_reaches_the_spread(power: float) -> None:
    """A spread 0.05 gamma^-power that follows with a lag of three rounds ends at the goal."""
    control, spread = WeightControl(FIRST_SHARE), 1.0
    for _ in range(300):
        spread += (0.05 * control.gamma**-power - spread) / 3
        control = next_weight(control, {"spread": spread, "accuracy": 0.5}, SPREAD, ROUNDS)
    assert spread == pytest.approx(0.1, rel=0.01)
    assert control.gamma == pytest.approx(0.5 ** (1 / power), rel=0.05)


def test_the_closed_loop_reaches_the_accuracy() -> None:
    """An accuracy that falls as gamma rises, 0.96 - 0.1 gamma, ends at the goal."""
    control = WeightControl(FIRST_SHARE)
    for _ in range(300):
        told = {"accuracy": 0.96 - 0.1 * control.gamma}
        control = next_weight(control, told, ACCURACY, ROUNDS)
    assert control.gamma == pytest.approx(0.6, rel=0.01)


def test_one_round_by_hand() -> None:
    """A point of accuracy above the goal is half the full error, smoothed to a fifth."""
    moved = next_weight(WeightControl(0.5), {"accuracy": 0.91}, ACCURACY, ROUNDS)
    assert moved.error == pytest.approx(-NEW_ERROR_WEIGHT / 2)
    assert moved.gamma == pytest.approx(0.5 + STEP * NEW_ERROR_WEIGHT / 2)


@given(
    st.floats(FIRST_SHARE, 1),
    st.floats(-1, 1),
    st.floats(-1e300, 1e300),
    st.floats(0, 1),
    st.sampled_from([SPREAD, ACCURACY]),
)
def test_whatever_is_told_a_round_moves_it_by_the_ramps_step_at_most(
    gamma: float, error: float, spread: float, accuracy: float, cel: CEL
) -> None:
    """Spreads that are absurd, negative or 0 included; gamma keeps its limits."""
    told = {"spread": spread, "accuracy": accuracy}
    moved = next_weight(WeightControl(gamma, error), told, cel, ROUNDS)
    assert abs(moved.gamma - gamma) <= STEP + 1e-12
    assert FIRST_SHARE <= moved.gamma <= 1
    assert abs(moved.error) <= 1


def test_a_goal_that_is_never_near_leaves_it_at_a_limit() -> None:
    """All of the weight where all is allowed, a tenth of it where nothing is."""
    for accuracy, limit in ((1.0, 1.0), (0.5, FIRST_SHARE)):
        control = WeightControl(0.5)
        for _ in range(ROUNDS):
            control = next_weight(control, {"accuracy": accuracy}, ACCURACY, ROUNDS)
        assert control.gamma == pytest.approx(limit)
    assert init_control(ACCURACY) == WeightControl(FIRST_SHARE)


def test_there_is_none_where_gamma_follows_the_time() -> None:
    """Nor without a loss."""
    assert init_control(options(kind="plain")) is None
    assert init_control(ACCURACY.model_copy(update={"kind": "none"})) is None


def test_it_acts_from_warm_up_and_stays_in_the_chain() -> None:
    """The server moves it in rounds 6 to 40; a threshold beside it never moves."""
    settings = parse_settings(RAW | {"cel.penalty": "log"})
    parts = build_server_parts(settings)
    start = init_run_state(settings, build_workspace_net(settings))
    assert start.threshold is None
    assert start.weight == WeightControl(FIRST_SHARE)
    moved = []
    for number in range(1, ROUNDS + 1):
        state = start._replace(round=number)
        after = follow_goal(parts, state, {"accuracy": 1.0}, 1000)
        if after.weight != state.weight:
            moved.append(number)
        assert after.threshold is None
    assert moved == list(range(6, 41))


def test_it_is_never_ahead_of_the_ramp() -> None:
    """Nor does the loss act in warm-up; where all is allowed it is nearly the ramp."""
    settings = parse_settings(RAW)
    assert build_schedule(settings).plan(5, 1.0, 1000, gamma=0.25).cel_weight == 0
    assert build_schedule(settings).plan(6, 1.0, 1000, gamma=0.25).cel_weight == pytest.approx(
        2 / 25
    )
    assert build_schedule(settings).plan(20, 1.0, 1000, gamma=0.25).cel_weight == 0.5
    control = init_control(settings.cel)
    ramped = parse_settings(RAW | {"cel.schedule": "ramp", "cel.target": "none"})
    clock = build_schedule(ramped).clock
    for number in range(1, ROUNDS + 1):
        assert control is not None
        plan = build_schedule(settings).plan(number, 1.0, 1000, gamma=control.gamma)
        assert plan.cel_weight == pytest.approx(2 * ramp_losses(ramped, clock(number)), abs=0.2)
        if plan.cel_acts:
            control = next_weight(control, {"accuracy": 1.0}, settings.cel, ROUNDS)


def test_a_loss_that_measures_no_spread_is_named() -> None:
    """Gamma stands still, and not without a word; an accuracy needs no spread."""
    control = WeightControl(0.5)
    with pytest.warns(UserWarning, match="the weight stays; cel.kind 'plain' must measure it"):
        assert next_weight(control, {"accuracy": 0.9}, SPREAD, ROUNDS) == control
    assert math.isfinite(next_weight(control, {"accuracy": 0.9}, ACCURACY, ROUNDS).gamma)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cel.target": "none"}, "cel.schedule is 'target', cel.target 'none': gamma follows"),
        ({"cel.kind": "none"}, "cel.schedule is 'target', cel.kind 'none': .* set cel.kind to"),
        ({"cel.goal": 1.0}, "must be a validation accuracy below 1"),
        (
            {"strategy.name": "a:b", "strategy.upload": "weights", "temperature": 0},
            "no threshold and no weight",
        ),
        (
            {
                "cel.target": "spread",
                "strategy.aggregation": "geometric-median",
                "temperature": 0,
            },
            "one hostile client",
        ),
        (
            {
                "cel.target": "spread",
                "temperature": 0,
                "update.clip": 1.0,
                "update.noise": 1.0,
            },
            "more than its noisy update",
        ),
    ],
    ids=["goal", "loss", "accuracy", "weights", "robust", "noisy"],
)
def test_what_it_cannot_follow_is_refused(change: dict[str, object], message: str) -> None:
    """At the door, with the reason; of a spread that clients send where they must not."""
    base = RAW | {"prior.mode": "none", "chain.scope": "full", "temperature": 0}
    with pytest.raises(SettingsError, match=message):
        parse_settings(base | change)
    parse_settings(base | {"update.clip": 1.0, "update.noise": 1.0})
    parse_settings(base | {"cel.kind": "mutual-information"})
