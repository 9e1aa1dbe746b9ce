"""Threshold and weight that follow a goal: which way they move, how fast, how far, until when."""

import math
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcel.errors import SettingsError
from fedcel.federation import follow_goal
from fedcel.losses.cel import CEL, CutShape, GoalControl, init_control, move_control
from fedcel.losses.cel.conditional_entropy import THRESHOLD_SHARE
from fedcel.losses.cel.goal_control import FIRST_SHARE, MAX_LOG_STEP, MAX_RATIO, NEW_ERROR_WEIGHT
from fedcel.posterior import RoundOrder
from fedcel.run_parts import (
    build_schedule,
    build_server_parts,
    build_workspace_net,
    init_run_state,
)
from fedcel.settings import parse_settings
from tests.fedcel.losses.single import options

ROUNDS = 50
LOG = {"kind": "plain", "penalty": "log", "warm_up": 5, "ramp": 0.5}
RAMP = {"kind": "plain", "schedule": "target", "warm_up": 5, "ramp": 0.5}
THRESHOLDS = {
    "spread": options(**LOG, target="spread", goal=0.5),
    "accuracy": options(**LOG, target="accuracy", goal=0.9),
}
WEIGHTS = {
    "spread": options(**RAMP, target="spread", goal=0.1),
    "accuracy": options(**RAMP, target="accuracy", goal=0.9),
}
STEP = 0.9 / 20
"""The largest of gamma: from a tenth to 1 in the 20 rounds of the ramp."""
CUT = CutShape(10, 64, 0.3)
RAW = {
    "rounds": ROUNDS,
    "cel.kind": "plain",
    "cel.schedule": "target",
    "cel.target": "accuracy",
    "cel.goal": 0.9,
    "cel.weight": 2.0,
    "chain.burn-in": 0.8,
}
threshold, weight = partial(GoalControl, "threshold"), partial(GoalControl, "weight")


def move(control: GoalControl, cel: CEL, *, number: int = ROUNDS, **measured: float) -> GoalControl:
    """Return the control after a round late enough for each of them."""
    return move_control(control, measured, number, cel=cel, rounds=ROUNDS)


@pytest.mark.parametrize("power", [0.4, 0.7, 1.0])
def test_the_closed_loop_reaches_the_spread(power: float) -> None:
    """Spreads 0.8 tau^power and 0.05 gamma^-power that follow with a lag end at the goal."""
    control, spread = threshold(0.1), 0.3
    for _ in range(300):
        spread += (0.8 * control.value**power - spread) / 3
        control = move(control, THRESHOLDS["spread"], spread=spread, accuracy=0.5)
    assert spread == pytest.approx(0.5, rel=0.01)
    assert control.value == pytest.approx((0.5 / 0.8) ** (1 / power), rel=0.05)
    control, spread = weight(FIRST_SHARE), 1.0
    for _ in range(300):
        spread += (0.05 * control.value**-power - spread) / 3
        control = move(control, WEIGHTS["spread"], spread=spread, accuracy=0.5)
    assert spread == pytest.approx(0.1, rel=0.01)
    assert control.value == pytest.approx(0.5 ** (1 / power), rel=0.05)


def test_the_closed_loop_reaches_the_accuracy() -> None:
    """Accuracies 0.95 + 0.03 ln tau and 0.96 - 0.1 gamma end at the goal."""
    tau, gamma = threshold(1.0), weight(FIRST_SHARE)
    for _ in range(300):
        accuracy = 0.95 + 0.03 * math.log(tau.value)
        tau = move(tau, THRESHOLDS["accuracy"], spread=0.5, accuracy=accuracy)
        gamma = move(gamma, WEIGHTS["accuracy"], accuracy=0.96 - 0.1 * gamma.value)
    assert tau.value == pytest.approx(math.exp(-0.05 / 0.03), rel=0.01)
    assert gamma.value == pytest.approx(0.6, rel=0.01)


def test_one_round_by_hand() -> None:
    """A point of accuracy is half the full error, smoothed to NEW_ERROR_WEIGHT / 2."""
    share = NEW_ERROR_WEIGHT / 2
    moved = move(threshold(0.2), THRESHOLDS["accuracy"], spread=0.2, accuracy=0.89)
    assert moved.error == pytest.approx(share)
    assert moved.value == pytest.approx(0.2 * math.exp(MAX_LOG_STEP * share))
    moved = move(weight(0.5), WEIGHTS["accuracy"], accuracy=0.91)
    assert moved.error == pytest.approx(-share)
    assert moved.value == pytest.approx(0.5 + STEP * share)


@given(
    st.floats(1e-9, 1e9),
    st.floats(-1, 1),
    st.floats(-1e300, 1e300),
    st.floats(0, 1),
    st.sampled_from(["spread", "accuracy"]),
)
def test_whatever_is_told_a_round_moves_it_by_the_rate_at_most(
    tau: float, error: float, spread: float, accuracy: float, target: str
) -> None:
    """Spreads that are absurd, negative or 0 included; error and gamma keep their limits."""
    measured = {"spread": spread, "accuracy": accuracy}
    moved = move(threshold(tau, error), THRESHOLDS[target], **measured)
    assert abs(math.log(moved.value / tau)) <= MAX_LOG_STEP + 1e-9
    assert abs(moved.error) <= 1
    gamma = max(FIRST_SHARE, min(1.0, tau))
    moved = move(weight(gamma, error), WEIGHTS[target], **measured)
    assert abs(moved.value - gamma) <= STEP + 1e-12
    assert FIRST_SHARE <= moved.value <= 1
    assert abs(moved.error) <= 1


@given(st.floats(0.01, 100))
def test_a_goal_that_is_never_met_leaves_it_at_a_limit(spread: float) -> None:
    """Within MAX_RATIO of the spread; all of the weight where all is allowed, else a tenth."""
    for accuracy, end, limit in (
        (0.0, MAX_RATIO * spread, FIRST_SHARE),
        (1.0, spread / MAX_RATIO, 1.0),
    ):
        tau, gamma = threshold(spread), weight(0.5)
        for _ in range(100):
            tau = move(tau, THRESHOLDS["accuracy"], spread=spread, accuracy=accuracy)
            gamma = move(gamma, WEIGHTS["accuracy"], accuracy=accuracy)
        assert tau.value == pytest.approx(end)
        assert gamma.value == pytest.approx(limit)


def test_it_starts_at_the_tau_of_the_penalty_or_at_the_least_gamma() -> None:
    """Set, or tied to the noise; nothing where both are fixed or there is no loss."""
    log = THRESHOLDS["spread"]
    assert init_control(log, CUT) == threshold(THRESHOLD_SHARE * 0.3**2 * 64)
    assert init_control(log.model_copy(update={"threshold": 0.7}), CUT) == threshold(0.7)
    assert init_control(WEIGHTS["accuracy"], CUT) == weight(FIRST_SHARE)
    both = log.model_copy(update={"schedule": "target"})
    assert init_control(both, CUT) == weight(FIRST_SHARE)
    assert init_control(options(kind="plain"), CUT) is None
    assert init_control(options(), CUT) is None


def test_a_loss_that_measures_no_spread_is_named() -> None:
    """It stands still, and not without a word; gamma by an accuracy needs no spread."""
    for control, cels in ((threshold(0.5), THRESHOLDS), (weight(0.5), WEIGHTS)):
        words = f"told no 'spread'.*the {control.steered} stays; cel.kind 'plain' must measure it"
        with pytest.warns(UserWarning, match=words):
            assert move(control, cels["spread"], accuracy=0.9) == control
    assert math.isfinite(move(weight(0.5), WEIGHTS["accuracy"], accuracy=0.9).value)


def test_a_threshold_that_follows_the_accuracy_waits_for_the_ramp() -> None:
    """A young model is no reason to raise it."""
    moved = [
        move(threshold(0.5), THRESHOLDS["accuracy"], number=n, spread=1.0, accuracy=0.1).value
        for n in (24, 25)
    ]
    assert moved[0] == 0.5 < moved[1]


def test_it_acts_from_warm_up_and_stays_in_the_chain() -> None:
    """The server moves it in rounds 6 to 40."""
    settings = parse_settings(RAW | {"cel.penalty": "log"})
    parts = build_server_parts(settings)
    start = init_run_state(settings, build_workspace_net(settings))
    assert (start.threshold, start.gamma) == (None, FIRST_SHARE)
    moved = []
    for number in range(1, ROUNDS + 1):
        state = start._replace(round=number)
        plan = parts.schedule.plan(RoundOrder(number, 1000, gamma=state.gamma))
        after = follow_goal(parts, state, {"accuracy": 1.0}, plan)
        if after.gamma != state.gamma:
            moved.append(number)
    assert moved == list(range(6, 41))


def test_gamma_is_never_ahead_of_the_ramp() -> None:
    """Nor does the loss act in warm-up; where all is allowed it is nearly the ramp."""
    settings = parse_settings(RAW)
    schedule = build_schedule(settings)
    plans = [schedule.plan(RoundOrder(n, 1000, gamma=0.25)) for n in (5, 6, 20)]
    weights = [plan.weights.get("cel", 0.0) for plan in plans]
    assert weights == pytest.approx([0, 2 / 25, 0.5])
    ramped = parse_settings(RAW | {"cel.schedule": "ramp", "cel.target": "none"})
    control = weight(FIRST_SHARE)
    for number in range(1, ROUNDS + 1):
        plan = schedule.plan(RoundOrder(number, 1000, gamma=control.value))
        gamma = ramped.cel.find_gamma(number, ROUNDS, 1.0)
        if not plan.is_encoder_frozen:
            assert plan.weights.get("cel", 0.0) == pytest.approx(2 * gamma, abs=0.2)
        if "cel" in plan.weights:
            control = move(control, settings.cel, accuracy=1.0)


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
