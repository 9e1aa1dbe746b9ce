"""Scores against closed forms, scikit-learn and torchmetrics."""

from math import log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss
from torchmetrics.functional.classification import multiclass_calibration_error

from fedcel.metrics import calibration
from tests.fedcel.seeded import seeded

P = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.25, 0.35, 0.4]])
Y = torch.tensor([0, 2, 2])


def random_case(seed: int, n: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    """Return probabilities of four classes and labels."""
    stream = seeded(seed)
    p = (2 * torch.randn(n, 4, generator=stream, dtype=torch.float64)).softmax(1)
    return p, torch.randint(4, (n,), generator=stream)


def test_scores_by_hand() -> None:
    """Three predictions, each in a bin of its own, two right."""
    scores = calibration.score_probabilities(P, Y)
    assert list(scores) == ["accuracy", "nll", "ece", "brier"]
    assert abs(scores["accuracy"] - 2 / 3) < 1e-12
    assert abs(scores["nll"] + (log(0.7) + log(0.3) + log(0.4)) / 3) < 1e-7
    assert abs(scores["ece"] - (0.3 + 0.6 + 0.6) / 3) < 1e-7
    assert abs(scores["brier"] - (0.14 + 0.86 + 0.545) / 3) < 1e-7


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1))
def test_scores_against_other_libraries(seed: int) -> None:
    """Accuracy, NLL and Brier as in scikit-learn, ECE as in torchmetrics."""
    p, y = random_case(seed)
    scores, classes = calibration.score_probabilities(p, y), list(range(4))
    assert abs(scores["accuracy"] - accuracy_score(y, p.argmax(1))) < 1e-12
    assert abs(scores["nll"] - log_loss(y, p.numpy(), labels=classes)) < 1e-9
    brier = brier_score_loss(y, p.numpy(), labels=classes, scale_by_half=False)
    assert abs(scores["brier"] - brier) < 1e-12
    ece = multiclass_calibration_error(p, y, num_classes=4, n_bins=15, norm="l1")
    assert abs(scores["ece"] - float(ece)) < 1e-6


def test_reliability_bins() -> None:
    """Bins ((m-1)/M, m/M]; sums give accuracy and ECE back; empty bins hold None."""
    edges = torch.tensor([[0.5, 0.5], [0.75, 0.25], [0.76, 0.24], [1.0, 0.0], [0.0, 1.0]])
    bins = calibration.reliability(edges.double(), torch.zeros(5, dtype=torch.long), bins=4)
    assert bins["count"] == [0, 1, 1, 3]
    assert bins["accuracy"] == [None, 1.0, 1.0, 2 / 3]
    assert bins["confidence"][:3] == [None, 0.5, 0.75]
    p, y = random_case(0)
    bins = calibration.reliability(p, y)
    rows = [r for r in zip(*bins.values(), strict=True) if r[2]]
    scores = calibration.score_probabilities(p, y)
    assert abs(sum(a * n for _, a, n in rows) / 200 - scores["accuracy"]) < 1e-12
    assert abs(sum(abs(c - a) * n for c, a, n in rows) / 200 - scores["ece"]) < 1e-12


def test_nll_of_an_underflowed_probability_is_large_and_finite() -> None:
    """-log of the smallest normal number: 87.3 in float32, 708.4 in float64."""
    p = torch.tensor([[1.0, 0.0]])
    assert abs(calibration.nll(p, torch.tensor([1])) - 87.3365) < 1e-3
    assert abs(calibration.nll(p.double(), torch.tensor([1])) - 708.3964) < 1e-3
    assert calibration.nll(p, torch.tensor([0])) == 0


def test_uniform_and_perfect() -> None:
    """A uniform guess: log C nats, Brier 1 - 1/C, calibrated; the truth: 0 everywhere."""
    uniform, y = torch.full((8, 4), 0.25), torch.arange(8) % 4
    scores = calibration.score_probabilities(uniform, y)
    assert abs(scores["nll"] - log(4)) < 1e-7 and abs(scores["brier"] - 0.75) < 1e-7
    assert scores["accuracy"] == 0.25 and scores["ece"] < 1e-7
    perfect = calibration.score_probabilities(torch.nn.functional.one_hot(y).float(), y)
    assert perfect == {"accuracy": 1, "nll": 0, "ece": 0, "brier": 0}


@pytest.mark.parametrize(
    "bad", [P * 2, P - 0.2, P * torch.nan, P[:0], P.new_tensor([[1.1, -0.1, 0.0]])]
)
def test_no_probabilities_are_refused(bad: torch.Tensor) -> None:
    """Logits, NaN and nothing are not scored."""
    labels = torch.zeros(len(bad), dtype=torch.long)
    for score in (calibration.score_probabilities, calibration.reliability):
        with pytest.raises(ValueError, match="probabilities are"):
            score(bad, labels)


def test_uncertainty_by_hand() -> None:
    """Two sure samples that disagree: all of log 2 is disagreement; two that agree: none."""
    one, two = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    unsure = torch.tensor([0.5, 0.5])
    samples = torch.stack(
        [torch.stack([one, one, unsure]), torch.stack([two, one, unsure])]
    ).double()
    log2 = log(2)
    want = torch.tensor([log2, 0, log2], dtype=torch.float64)
    torch.testing.assert_close(calibration.predictive_entropy(samples), want)
    want = torch.tensor([log2, 0, 0], dtype=torch.float64)
    torch.testing.assert_close(calibration.bald(samples), want)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1))
def test_bald_is_the_mean_divergence_from_the_average(seed: int) -> None:
    """I = E_s KL(p_s | mean p), at least 0, at most the entropy."""
    p, _ = random_case(seed, 60)
    samples = p.reshape(5, 12, 4)
    divergence = (samples * (samples / samples.mean(0)).log()).sum(2).mean(0)
    value = calibration.bald(samples)
    torch.testing.assert_close(value, divergence)
    assert (value >= 0).all() and (value <= calibration.predictive_entropy(samples)).all()
