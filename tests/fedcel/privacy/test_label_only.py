"""Randomised response: its chances are exact, its law is right, its ceiling is attained."""

from decimal import Decimal, localcontext
from math import exp, inf, nan

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, chisquare

from fedcel.privacy import LabelOnly
from fedcel.privacy.label_only import truth_chance
from fedcel.testing import check_mechanism

ALPHA = 1e-6


def test_it_holds_the_contract() -> None:
    check_mechanism(lambda: LabelOnly(1.0, 3))


@settings(deadline=None, max_examples=200)
@given(st.floats(1e-9, 700.0), st.integers(2, 1000))
def test_the_chances_keep_epsilon_exactly(epsilon: float, classes: int) -> None:
    """P (C - 1) <= e^eps (1 - p) in 60 digits, for the double that OpenDP is given."""
    with localcontext() as digits:
        digits.prec = 60
        p = Decimal(truth_chance(epsilon, classes))
        assert p * (classes - 1) <= Decimal(epsilon).exp() * (1 - p)
        assert p * classes >= 1
    expected = 1 / (1 + (classes - 1) * exp(-epsilon))
    assert float(p) == pytest.approx(expected, rel=1e-12)


def test_the_law_of_the_labels() -> None:
    """The top class with chance .4754, the others alike: 4 classes, epsilon 1."""
    answer = LabelOnly(1.0, 4).answer(torch.tensor([[0.0, 0.1, -3.0, 0.0]]).expand(10_000, 4))
    counts = answer.argmax(1).bincount(minlength=4).tolist()
    assert binomtest(counts.pop(1), 10_000, exp(1) / (exp(1) + 3)).pvalue > ALPHA
    assert chisquare(counts).pvalue > ALPHA


def test_logits_of_every_floating_type() -> None:
    """NumPy, which finds the largest, has no bfloat16."""
    logits = 4 * torch.eye(3)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        row = LabelOnly(1.0, 3).answer_without_noise(logits.to(dtype))
        assert row.argmax(1).tolist() == [0, 1, 2]


def test_softmax_of_an_answer_is_the_chance_of_each_class() -> None:
    """e^eps/(e^eps + C - 1) at the label, the others alike."""
    (row,) = LabelOnly(1.0, 3).answer(torch.zeros(1, 3)).softmax(1)
    expected = [exp(1) / (exp(1) + 2), *[1 / (exp(1) + 2)] * 2]
    assert sorted(row.tolist(), reverse=True) == pytest.approx(expected)


@pytest.mark.parametrize("bad", [0.0, -1.0, 1e-10, inf, nan])
def test_impossible_numbers_are_refused(bad: float) -> None:
    """Epsilon, and fewer than two classes."""
    with pytest.raises(ValueError, match="epsilon is"):
        LabelOnly(bad, 3)
    with pytest.raises(ValueError, match="classes is 1, must be 2"):
        LabelOnly(1.0, 1)


def test_labels_are_told_with_the_law_of_the_rows() -> None:
    """Labels in, labels out, of either kind of array; the truth with chance .711 of 2 classes."""
    labels = np.tile([0, 1, 1, 0], 2_500)
    told = LabelOnly(epsilon=0.9, classes=2).disturb_labels(labels)
    assert isinstance(told, np.ndarray) and set(told.tolist()) == {0, 1}
    assert binomtest(int((told == labels).sum()), 10_000, exp(0.9) / (exp(0.9) + 1)).pvalue > ALPHA
    tensor = LabelOnly(40.0, 10).disturb_labels(torch.arange(10))
    assert torch.equal(tensor, torch.arange(10))


@pytest.mark.parametrize("labels", [np.array([3]), np.array([-1]), np.array([0.5])])
def test_what_is_no_label_is_refused(labels: np.ndarray) -> None:
    """Nothing is drawn for it."""
    with pytest.raises(ValueError, match="must be whole numbers from 0 to 2"):
        LabelOnly(1.0, 3).disturb_labels(labels)
