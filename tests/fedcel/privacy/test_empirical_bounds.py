"""Measured epsilons and distances: closed forms, and that they promise nothing."""

from math import inf, log

import pytest
import torch
from scipy.stats import binomtest

from fedcel.privacy import (
    LabelOnly,
    estimate_sensitivity,
    measure_epsilon,
    push_to_boundary,
)
from fedcel.privacy.empirical_bounds import distinguishing_scores, epsilon_bound


def events(hits: int, count: int) -> torch.Tensor:
    """Return that many events, so many of them true."""
    return torch.arange(count) < hits


def test_the_bound_is_clopper_pearson_s() -> None:
    """log((p - delta)/q) of the exact two-sided 95 % intervals."""
    p = binomtest(700, 1000).proportion_ci(0.95, "exact").low
    q = binomtest(90, 1000).proportion_ci(0.95, "exact").high
    for delta in (0.0, 0.05):
        bound = epsilon_bound(events(700, 1000), events(90, 1000), delta, 0.95)
        assert bound == pytest.approx(log((p - delta) / q), rel=1e-9)


def test_bounds_at_the_edges() -> None:
    """No hit says nothing; all of both says nothing; none of the others is bounded."""
    assert epsilon_bound(events(0, 100), events(0, 100), 0.0, 0.95) == -inf
    assert epsilon_bound(events(100, 100), events(100, 100), 0.0, 0.95) < 0
    p = binomtest(100, 100).proportion_ci(0.95, "exact").low
    q = binomtest(0, 100).proportion_ci(0.95, "exact").high
    assert epsilon_bound(events(100, 100), events(0, 100), 0.0, 0.95) == pytest.approx(log(p / q))


def test_a_known_epsilon_is_nearly_reached() -> None:
    """Randomised response at epsilon 1 is nearly measured; equal inputs give 0."""
    first, second, _ = torch.eye(3)
    mechanism = LabelOnly(1.0, 3)
    assert 0.6 < measure_epsilon(mechanism, torch.stack([first, second]), 5000, 0.999) < 1.0
    assert measure_epsilon(mechanism, torch.stack([first, first]), 1000, 0.999999) == 0
    with pytest.raises(ValueError, match="answers are 99"):
        measure_epsilon(mechanism, torch.stack([first, second]), 99)


def test_answers_with_the_same_mean_are_not_told_apart() -> None:
    """The two means agree to the last bit, as equal counts of labels do: every score is 0."""
    rows = torch.eye(3, dtype=torch.float64).repeat(100, 1)
    for score in distinguishing_scores(rows, rows):
        assert score(rows).unique().tolist() == [0]


def test_estimated_sensitivity_by_hand() -> None:
    """Of a doubling net at (0,0), (3,4), (1,0): 14 in L1, 10 in L2."""
    inputs = torch.tensor([[0.0, 0.0], [3.0, 4.0], [1.0, 0.0]])
    estimate = estimate_sensitivity(lambda x: 2 * x, inputs)
    assert (estimate.l1, estimate.l2, estimate.inputs) == (14.0, 10.0, 3)
    assert estimate.label == "not a guarantee"
    assert "not a guarantee" in str(estimate)


def test_what_cannot_be_estimated() -> None:
    """One input, and undefined answers."""
    with pytest.raises(ValueError, match="1 inputs, must be 2"):
        estimate_sensitivity(lambda x: x, torch.zeros(1, 2))
    with pytest.raises(ValueError, match="NaN or infinity"):
        estimate_sensitivity(lambda x: x / 0, torch.zeros(2, 2))


def test_inputs_are_pushed_to_the_boundary() -> None:
    """Between two classes of a line: both sides of its zero, between the inputs they came from."""

    def answer(rows: torch.Tensor) -> torch.Tensor:
        return torch.cat([rows, -rows], 1)

    inputs = torch.tensor([[3.0], [1.0], [-2.0]])
    pushed = push_to_boundary(answer, inputs)
    assert pushed.shape == (6, 1)
    assert float(pushed.abs().max()) < 1e-5
    tops = answer(pushed).argmax(1)
    assert tops.tolist() == [0, 0, 1, 1, 1, 0]
    assert len(push_to_boundary(answer, inputs[:2])) == 0  # one class, no boundary


def test_the_boundary_may_be_where_answers_differ_most() -> None:
    """A net that is steep at its boundary alone: images by themselves show less."""

    def answer(rows: torch.Tensor) -> torch.Tensor:
        return torch.cat([50 * rows * (-rows.square() * 1e4).exp() + rows, -rows], 1)

    inputs = torch.linspace(-1, 1, 8)[:, None]
    plain = estimate_sensitivity(answer, inputs)
    pushed = estimate_sensitivity(answer, torch.cat([inputs, push_to_boundary(answer, inputs)]))
    assert pushed.l1 >= plain.l1 and pushed.inputs == 24
