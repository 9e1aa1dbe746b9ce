"""What clients report: ranges that honest ones keep, and how little a hostile one decides."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcel.federation.client_metrics import HELD, LEAD, summarise_metrics
from fedcel.losses import MetricRange
from fedcel.losses.cel import CEL, GoalControl, move_control
from fedcel.run_parts import declare_metrics
from fedcel.settings import parse_settings
from tests.fedcel.train_one import update_one

KINDS = sorted(CEL.kinds.keys() - {":"})
SPREAD = {
    "loss": MetricRange(0.0, math.inf, 2.0),
    "spread": MetricRange(0.0, 64.0, 64.0),
    "share": MetricRange(0.0, 1.0, is_per_class=True),
}
GATED = {"a": MetricRange(0.0, 1.0, is_per_class=True)}


@pytest.mark.parametrize("defence", ["none", "nopeek", "adversarial"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_built_in_losses_report_is_declared_and_in_range(kind: str, defence: str) -> None:
    """A real client's round: every name is declared, every value possible."""
    raw = {"clients": 3, "local.steps": 2, "local.clip": 0.5, "cel.warm-up": 0, "cel.ramp": 0.0}
    settings = parse_settings({**raw, "cel.kind": kind, "defence.name": defence})
    metrics = update_one(settings, 0, 0.5, number=5, total=600).metrics
    declared = declare_metrics(settings, 10)
    bases = {name for name, metric_range in declared.items() if metric_range.is_per_class}
    per_class = {f"{name}-{label}" for name in bases for label in range(10)}
    assert metrics.keys() >= {"loss"} and metrics.keys() <= declared.keys() | per_class
    assert kind == "none" or "spread" in metrics
    summary = summarise_metrics([metrics], [1.0], declared, 10)
    assert summary.left_out == {} and summary.means == pytest.approx(metrics)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"loss": math.nan}, "'loss' is nan, must be a finite number"),
        ({"loss": math.inf}, "'loss' is inf"),
        ({"loss": -0.5}, r"'loss' is -0.5, must be in \[0, inf\]"),
        ({"loss": 1e30}, "'loss' is 1e.30, at most 300 is accepted"),
        ({"spread": 65.0}, r"'spread' is 65, must be in \[0, 64\]"),
        ({"mine": 1.0}, "most clients report no 'mine'"),
        ({"loss-0": 1e30}, "most clients report no 'loss-0'"),
        ({"spread-3": 1.0}, "most clients report no 'spread-3'"),
        ({"share-3": 1.0}, None),
        ({"share-3": 1.1}, r"'share-3' is 1.1, must be in \[0, 1\]"),
        ({"share-10": 1.0}, "most clients report no 'share-10'"),
        ({"spread-10": 1.0}, "most clients report no 'spread-10'"),
        ({"x" * 101: 1.0}, "name has 101 characters"),
        ({f"m{k}": 1.0 for k in range(10_000)}, "reports 1000. metrics, at most"),
        ({f"spread-{k}": 1.0 for k in range(10, 900)}, "'spread-10' and 889 others"),
    ],
)
def test_a_number_that_cannot_be_costs_its_client_alone(
    change: dict[str, float], reason: str | None
) -> None:
    """The means are those of the others, or of the client's other numbers; the reason is kept."""
    usual = {"loss": 2.0, "spread": 2.0, "share": 0.5}
    rows = [usual | {"loss": 1.0}, usual | {"loss": 3.0}, usual | change]
    summary = summarise_metrics(rows, [0.25, 0.25, 0.5], SPREAD, 10)
    assert {k: v for k, v in summary.means.items() if k in usual} == usual
    assert summary.means.keys() - usual.keys() <= ({"share-3"} if reason is None else set())
    if reason is None:
        assert summary.left_out == {}
    else:
        assert [*summary.left_out] == [2]
        assert re.search(reason, summary.left_out[2]), summary.left_out


def test_clients_that_all_diverge_are_believed() -> None:
    """What is far beyond the usual for one is not where the middle client reports as much."""
    rows = [{"loss": 1e6}, {"loss": 2e6}, {"loss": 3e6}]
    summary = summarise_metrics(rows, [0.3, 0.3, 0.4], SPREAD)
    assert summary.left_out == {} and summary.means["loss"] == pytest.approx(2.1e6)


def test_a_metric_that_nobody_declared_is_the_middle_clients() -> None:
    """A user's own loss: one of three moves it no further than to its neighbour."""
    rows = [{"own": 1.0, "own-3": 1.0}, {"own": 2.0}, {"own": 1e30, "own-3": -5.0}]
    summary = summarise_metrics(rows, [0.3, 0.3, 0.4], {}, 10)
    assert summary.means == {"own": 2.0, "own-3": -5.0}
    assert summary.left_out == {}
    rows[2]["own-3"] = -1e30
    summary = summarise_metrics(rows, [0.3, 0.3, 0.4], {}, 10)
    assert summary.means == {"own": 1.0, "own-3": 1.0} and [*summary.left_out] == [2]


def test_a_metric_of_a_class_is_averaged_over_the_clients_that_saw_it() -> None:
    """Class 3 was seen by the first and the last: (.2 * .1 + .5 * .8)/.7, by their weights."""
    rows = [{"a": 0.1, "a-3": 0.1}, {"a": 0.1}, {"a": 0.4, "a-3": 0.8}]
    means = summarise_metrics(rows, [0.2, 0.3, 0.5], GATED, 10).means
    assert means == pytest.approx({"a": 0.25, "a-3": 0.42 / 0.7})


def test_an_impossible_metric_of_a_class_is_refused() -> None:
    """The range of a class's metric is that of the metric."""
    rows = [{"a": 0.1, "a-3": 0.1}, {"a": 0.1}, {"a": 0.1, "a-3": 1e30}]
    summary = summarise_metrics(rows, [0.2, 0.3, 0.5], GATED, 10)
    assert [*summary.left_out] == [2] and summary.means["a-3"] == pytest.approx(0.1)


@given(
    st.lists(st.floats(0.5, 1.0), min_size=3, max_size=9),
    st.floats(0, 64) | st.floats(allow_nan=True, allow_infinity=True),
)
def test_one_client_moves_what_a_threshold_follows_by_little(
    honest: list[float], hostile: float
) -> None:
    """Whatever it reports, by at most three times its weight, of the middle honest client."""
    rows = [{"spread": value} for value in honest]
    weights = [1 / (len(honest) + 1)] * (len(honest) + 1)
    summary = summarise_metrics([*rows, {"spread": hostile}], weights, SPREAD)
    assert summary.spread is not None
    low, high = min(honest), max(honest)
    w = weights[0]
    assert low * (1 - w) <= summary.spread <= high * (1 - w + HELD * w) + 1e-9


def test_honest_spreads_move_a_threshold_to_the_bit_as_their_mean() -> None:
    """Within a factor of four of the middle one nothing is held."""
    rows = [{"spread": value} for value in (0.3, 0.7, 1.1)]
    summary = summarise_metrics(rows, [0.2, 0.3, 0.5], SPREAD)
    assert summary.spread == summary.means["spread"]


def test_a_client_cannot_drag_a_threshold_along() -> None:
    """One of eight reports the largest spread there is for 60 rounds: tau stays within 2 times."""
    raw = {"cel.kind": "plain", "cel.penalty": "log", "cel.target": "spread", "cel.goal": 1.0}
    cel = parse_settings(raw).cel
    honest = steered = GoalControl("threshold", 1.0)
    for number in range(60):
        rows = [{"spread": 1.0}] * 7
        for hostile, control in ((1.0, "honest"), (64.0, "steered")):
            summary = summarise_metrics([*rows, {"spread": hostile}], [0.125] * 8, SPREAD)
            assert summary.spread is not None
            measured = {"spread": summary.spread}
            if control == "honest":
                honest = move_control(honest, measured, number, cel=cel, rounds=60)
            else:
                # The loss answers a lower threshold with a smaller spread.
                measured["spread"] *= steered.value
                steered = move_control(steered, measured, number, cel=cel, rounds=60)
    assert honest.value == 1.0
    assert 0.5 < steered.value < 1.0
    assert LEAD > HELD


def test_spreads_are_in_units_of_learned_noise() -> None:
    """Whose sd is an eighth of sigma at least: a square may be 64 times as large."""
    for name, factor in (("none", 1), ("learned-noise", 64)):
        settings = parse_settings({"cel.kind": "plain", "defence.name": name})
        assert declare_metrics(settings)["spread"].highest == 64 * factor
