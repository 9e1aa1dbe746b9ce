"""The server's arithmetic against closed forms."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedcel.federation.aggregation import (
    drop_unknown_classes,
    mean_metrics,
    renormalise_weights,
    slide_average,
)


@given(st.floats(0, 0.95))
def test_a_constant_delta_ends_at_its_own_size(momentum: float) -> None:
    """m_t = (1 - beta^t) D; undamped it grows to D / (1 - beta)."""
    average, undamped, delta = torch.zeros(2), torch.zeros(2), torch.tensor([1.0, -2.0])
    for _ in range(5):
        average = slide_average(average, delta, momentum)
        undamped = slide_average(undamped, delta, momentum, damped=False)
    torch.testing.assert_close(average, (1 - momentum**5) * delta)
    torch.testing.assert_close(undamped, (1 - momentum**5) / (1 - momentum) * delta)


def test_frozen_parameters_stay_whatever_the_average_holds() -> None:
    """The average's memory of the encoder is dropped with the freeze."""
    average = slide_average(torch.ones(4), torch.tensor([0.0, 0.0, 1.0, 1.0]), 0.5, frozen=2)
    assert average.tolist() == [0.0, 0.0, 1.0, 1.0]


def test_weights_of_the_kept_make_up_for_the_rest() -> None:
    """Nobody left out: the same bits; else the same sum. Noise is right for its own weight."""
    weights = {0: 0.3, 2: 0.5, 5: 0.2}
    assert renormalise_weights(weights, [0, 2, 5], has_noise=False) == [0.3, 0.5, 0.2]
    assert renormalise_weights(weights, [0, 5], has_noise=False) == pytest.approx([0.6, 0.4])
    assert renormalise_weights(weights, [0, 5], has_noise=True) == [0.3, 0.2]


def test_metrics_are_averaged_where_all_tell_a_finite_number() -> None:
    """A metric that one client lacks, or tells as NaN, is not averaged."""
    metrics = [{"loss": 1.0, "a": 2.0, "b": 1.0}, {"loss": 3.0, "b": float("nan")}]
    assert mean_metrics(metrics, [0.25, 0.75]) == {"loss": 2.5}


def test_a_metric_of_a_class_is_averaged_over_the_clients_that_saw_it() -> None:
    """Class 3 was seen by the first and the last: (.2 * 1 + .5 * 8)/.7, by their weights alone."""
    metrics = [{"spread": 1.0, "spread-3": 1.0}, {"spread": 1.0}, {"spread": 4.0, "spread-3": 8.0}]
    means = mean_metrics(metrics, [0.2, 0.3, 0.5])
    assert means == pytest.approx({"spread": 2.5, "spread-3": 4.2 / 0.7})


def test_one_client_among_others_neither_adds_a_metric_nor_takes_one_away() -> None:
    """Names of its own are left out; NaN, infinity or silence cost its own say alone."""
    honest = [{"spread": 1.0, "loss": 2.0, "n": 1.0}] * 2
    for hostile in (
        {"mine": 1.0, "mine-3": 1.0, "spread-99999": 1.0, "num-examples-1": 1.0},
        {"spread": float("nan"), "loss": float("inf"), "n": float("nan"), "spread-3": float("nan")},
    ):
        assert mean_metrics([*honest, hostile], [0.3, 0.3, 0.4]) == pytest.approx(honest[0])


def test_metrics_of_classes_that_do_not_exist_are_left_out() -> None:
    """However many a client invents; numbers in other names stay."""
    honest = {"loss": 1.0, "spread": 1.0, "spread-0": 1.0, "spread-9": 2.0}
    invented = {f"spread-{label}": 1.0 for label in range(10, 10_000)}
    assert drop_unknown_classes(honest | invented, 10) == honest
