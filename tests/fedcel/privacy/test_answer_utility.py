"""Utility of private logits: limits that are known, and the ceiling."""

from math import exp

import pytest
import torch
from scipy.stats import binom

from fedcel.privacy import (
    LabelledLogits,
    LabelOnlyAnswers,
    LaplaceAnswers,
    OpenAnswers,
    measure_utility,
)
from fedcel.privacy.answer_utility import accuracy_ceiling

N = 1500
LABELS = torch.arange(N) % 10
SURE = 50 * torch.nn.functional.one_hot(LABELS, 10).float()
IMAGES = LabelledLogits(SURE, LABELS)
KINDS = ("clamp", "l1", "probabilities")


@pytest.mark.parametrize("kind", KINDS)
def test_without_noise_everything_is_kept(kind: str) -> None:
    """Mechanism none: accuracy and top-1 of the logits, ceiling 1."""
    wrong = SURE.roll(1, 1)
    wrong[: N // 4] = SURE[: N // 4]
    utility = measure_utility(LabelledLogits(wrong, LABELS), OpenAnswers(clip_kind=kind))
    assert utility["accuracy"] == 0.25 and utility["top1-kept"] == 1 and utility["ceiling"] == 1
    assert abs(utility["confidence-before"] - 1) < 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_huge_and_tiny_epsilon(kind: str) -> None:
    """Much noise leaves chance, .1; hardly any leaves all."""
    low, high = binom.interval(1 - 1e-6, N, 0.1)
    lost = measure_utility(IMAGES, LaplaceAnswers(clip_kind=kind, epsilon=1e-4))
    assert low / N < lost["accuracy"] < high / N
    utility = measure_utility(IMAGES, LaplaceAnswers(clip_kind=kind, epsilon=1e5, budget=1e5))
    assert utility["accuracy"] == utility["top1-kept"] == 1
    assert abs(utility["confidence-after"] - 1) < 1e-9 and utility["ece"] < 1e-9
    assert lost["confidence-after"] < 0.101 and lost["ece"] < 0.04


def test_labels_attain_the_ceiling() -> None:
    """A reader is as sure as he may be; before, as sure as the unclipped logits."""
    utility = measure_utility(IMAGES, LabelOnlyAnswers(epsilon=2.0))
    low, high = binom.interval(1 - 1e-6, N, utility["ceiling"])
    assert low / N <= utility["accuracy"] <= high / N
    assert abs(utility["confidence-after"] - utility["ceiling"]) < 1e-9
    assert abs(utility["confidence-before"] - 1) < 1e-9


def test_accuracy_of_the_largest_of_laplace_values() -> None:
    """Probabilities 1 and 0 at epsilon 2, scale 1: P(L' - L > 1) = 3/(4e)."""
    y = torch.arange(N) % 2
    sure = 50 * torch.nn.functional.one_hot(y, 2).float()
    utility = measure_utility(
        LabelledLogits(sure, y),
        LaplaceAnswers(clip_kind="probabilities", epsilon=2.0),
    )
    miss = 3 * exp(-1) / 4  # P(L' - L > t) = exp(-t) (2 + t) / 4
    low, high = binom.interval(1 - 1e-6, N, 1 - miss)
    assert low / N <= utility["accuracy"] <= high / N


def test_ceiling_in_numbers() -> None:
    """.858 at epsilon 4 and ten classes; (e + .1)/(e + 2) with delta; 1 where exp overflows."""
    assert abs(accuracy_ceiling(4.0, 0.0, 10) - exp(4) / (exp(4) + 9)) < 1e-12
    assert abs(accuracy_ceiling(1.0, 0.05, 3) - (exp(1) + 0.1) / (exp(1) + 2)) < 1e-12
    assert accuracy_ceiling(1e6, 0.0, 10) == 1


def test_no_logits_are_refused() -> None:
    """A mean over nothing is not reported."""
    with pytest.raises(ValueError, match="at least one row"):
        measure_utility(LabelledLogits(SURE[:0], LABELS[:0]), LabelOnlyAnswers())
