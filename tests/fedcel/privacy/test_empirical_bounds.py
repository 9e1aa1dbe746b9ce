"""Measured epsilons: closed forms, and that they promise nothing."""

from math import inf, log
from types import SimpleNamespace

import pytest
import torch
from scipy.stats import binomtest

from fedcel.privacy import LabelOnly
from fedcel.privacy.empirical_bounds import distinguishing_scores, epsilon_bound, measure_epsilon


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
    in_single = SimpleNamespace(answer=lambda rows: mechanism.answer(rows).float(), delta=0.0)
    assert 0.6 < measure_epsilon(in_single, torch.stack([first, second]), 5000, 0.999) < 1.0
    with pytest.raises(ValueError, match="answers are 99"):
        measure_epsilon(mechanism, torch.stack([first, second]), 99)


def test_answers_with_the_same_mean_are_not_told_apart() -> None:
    """The two means agree to the last bit, as equal counts of labels do: every score is 0."""
    rows = torch.eye(3, dtype=torch.float64).repeat(100, 1)
    for score in distinguishing_scores(rows, rows):
        assert score(rows).unique().tolist() == [0]
