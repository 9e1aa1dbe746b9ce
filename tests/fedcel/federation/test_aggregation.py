"""The server's arithmetic against closed forms."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedcel.federation.aggregation import (
    mean_metrics,
    of_classes,
    realised,
    slide,
    start,
    weighted_sum,
)


def test_no_momentum_is_federated_averaging_to_the_bit() -> None:
    """Beta 0, gamma 1: w + sum w_k delta_k, summed in order."""
    stream = torch.Generator().manual_seed(0)
    model = torch.randn(50, generator=stream)
    deltas = [torch.randn(50, generator=stream) for _ in range(3)]
    weights = [0.2, 0.5, 0.3]
    by_hand = torch.zeros(50)
    for delta, weight in zip(deltas, weights, strict=True):
        by_hand = torch.add(by_hand, delta, alpha=weight)
    found = slide(start(model), weighted_sum(deltas, weights), 0.0, 1.0)
    assert torch.equal(found.model, model + by_hand)
    assert found.round == 1


@given(st.floats(0, 0.95), st.floats(0.1, 2))
def test_a_constant_delta_ends_at_its_own_size(momentum: float, gain: float) -> None:
    """m_t = (1 - beta^t) D, so that the model moves gamma sum_t m_t."""
    state, delta = start(torch.zeros(2)), torch.tensor([1.0, -2.0])
    for _ in range(5):
        state = slide(state, delta, momentum, gain)
    torch.testing.assert_close(state.average, (1 - momentum**5) * delta)
    moved = gain * sum(1 - momentum**t for t in range(1, 6))
    torch.testing.assert_close(state.model, moved * delta, rtol=1e-5, atol=1e-5)


def test_frozen_parameters_stay_whatever_the_average_holds() -> None:
    """The average's memory of the encoder is dropped with the freeze."""
    state = slide(start(torch.zeros(4)), torch.ones(4), 0.5, 1.0)
    after = slide(state, torch.tensor([0.0, 0.0, 1.0, 1.0]), 0.5, 1.0, frozen=2)
    assert torch.equal(after.model[:2], state.model[:2])
    assert not after.average[:2].any()
    assert (after.model[2:] != state.model[2:]).all()


def test_weights_of_the_kept_make_up_for_the_rest() -> None:
    """Nobody left out: the same bits; else the same sum. Noise is right for its own weight."""
    weights = {0: 0.3, 2: 0.5, 5: 0.2}
    assert realised(weights, [0, 2, 5], noisy=False) == [0.3, 0.5, 0.2]
    assert realised(weights, [0, 5], noisy=False) == pytest.approx([0.6, 0.4])
    assert realised(weights, [0, 5], noisy=True) == [0.3, 0.2]


def test_metrics_are_averaged_where_all_tell_a_finite_number() -> None:
    """A metric that one client lacks, or tells as NaN, is not averaged."""
    told = [{"loss": 1.0, "a": 2.0, "b": 1.0}, {"loss": 3.0, "b": float("nan")}]
    assert mean_metrics(told, [0.25, 0.75]) == {"loss": 2.5}


def test_a_metric_of_a_class_is_averaged_over_the_clients_that_saw_it() -> None:
    """Class 3 was seen by the first and the last: (.2 * 1 + .5 * 8)/.7, by their weights alone."""
    told = [{"spread": 1.0, "spread-3": 1.0}, {"spread": 1.0}, {"spread": 4.0, "spread-3": 8.0}]
    found = mean_metrics(told, [0.2, 0.3, 0.5])
    assert found == pytest.approx({"spread": 2.5, "spread-3": 4.2 / 0.7})


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
    assert of_classes(honest | invented, 10) == honest
