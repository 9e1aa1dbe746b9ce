"""Probabilities of private answers: closed forms, symmetry, post-processing, and they come true."""

from dataclasses import dataclass, replace
from math import exp

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.metrics import ece, score_probabilities
from fedcel.privacy import (
    Gaussian,
    KnownLaw,
    LabelOnly,
    Laplace,
    Mechanism,
    fit_calibration,
)
from fedcel.privacy.answer_calibration import (
    MAX_REFERENCES,
    BayesCalibration,
    estimate_confusions,
)
from fedcel.privacy.discrete_laplace import add_grid_noise

CLASSES = 5
MECHANISMS = [
    LabelOnly(1.5, CLASSES),
    *(Laplace(epsilon=2.0, classes=CLASSES, clip_kind=k) for k in ("l1", "clamp", "probabilities")),
    *(Gaussian(epsilon=8.0, classes=CLASSES, clip_kind=k) for k in ("l1", "probabilities")),
]
IDS = ["label-only", "laplace-l1", "laplace-clamp", "laplace-p", "gaussian-l1", "gaussian-p"]


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def imperfect_logits(count: int, seed: int) -> tuple[Float[Tensor, "N C"], Int[Tensor, " N"]]:
    """Return labels, all equally likely, and logits of a net that is right four times in five."""
    labels = torch.randint(0, CLASSES, (count,), generator=stream(seed))
    logits = torch.randn(count, CLASSES, generator=stream(seed + 1), dtype=torch.float64)
    return 2.3 * torch.nn.functional.one_hot(labels, CLASSES) + logits, labels


@dataclass(frozen=True)
class Opaque:
    """A mechanism that does not say its law."""

    inner: Laplace
    name: str = "opaque"
    delta: float = 0.0
    protects: str = "nothing."
    unit: str = "logits"

    @property
    def epsilon(self) -> float:
        return self.inner.epsilon

    def answer(self, logits: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
        return self.inner.answer(logits)


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_a_label_is_right_with_its_chance(epsilon: float, classes: int) -> None:
    """P at the label that is told, (1 - p)/(C - 1) elsewhere: a sure net, balanced classes."""
    mechanism = LabelOnly(epsilon, classes)
    answers = mechanism.answer(torch.randn(20, classes, generator=stream()))
    probabilities = fit_calibration(mechanism).probabilities(answers)
    p = exp(epsilon) / (exp(epsilon) + classes - 1)
    expected = torch.full((20, classes), (1 - p) / (classes - 1), dtype=torch.float64)
    expected[torch.arange(20), answers.argmax(1)] = p
    torch.testing.assert_close(probabilities, expected)


def test_a_label_with_confusions_by_hand() -> None:
    """Sum over tops t of P(t | y) P(told | t): classes count alike, however many images they have.

    Class 0: 240 of 400 images are taken for 0. Class 1: all of 100. At epsilon log 3, p = 3/4.
    """
    mechanism = LabelOnly(float(np.log(3)), 2)
    logits = np.repeat([[1.0, 0], [0, 1], [0, 1]], [240, 160, 100], axis=0)
    reader = fit_calibration(mechanism, logits, np.repeat([0, 1], [400, 100]))
    told_0 = (0.6 * 3 / 4 + 0.4 * 1 / 4, 1 / 4)
    (row,) = reader.probabilities(np.array([[np.log(3), 0.0]]))
    assert row.tolist() == pytest.approx(
        [told_0[0] / sum(told_0), told_0[1] / sum(told_0)], abs=3e-3
    )


def test_confusions_by_hand() -> None:
    """Two classes, each right once: all that is known is that (2 + 1/2) of (2 + 1) are right."""
    confusions = estimate_confusions(torch.tensor([0, 1]), torch.tensor([0, 1]), 2)
    assert (confusions.diagonal() >= 5 / 6).all() and torch.equal(confusions, confusions.T)
    torch.testing.assert_close(confusions.sum(1), torch.ones(2, dtype=torch.float64))


def draw_confusions(accuracies: Float[Tensor, " C"], each: int, seed: int) -> Float[Tensor, "C C"]:
    """Estimate the confusions of a net of these accuracies from so many references of a class."""
    classes = len(accuracies)
    labels = torch.arange(classes).repeat_interleave(each)
    is_right = torch.rand(len(labels), generator=stream(seed)) < accuracies[labels]
    shift = torch.randint(1, classes, (len(labels),), generator=stream(seed + 1))
    return estimate_confusions(
        torch.where(is_right, labels, (labels + shift) % classes), labels, 10
    )


def test_few_references_speak_for_all_classes_together() -> None:
    """A net that is right 97 times in 100, 15 references of each class: off by 1.3 points.

    The counts of each class alone are off by 3.6 on average.
    """
    accuracies = torch.full((10,), 0.97, dtype=torch.float64)
    gaps = [
        (draw_confusions(accuracies, 15, seed).diagonal() - accuracies).abs().mean()
        for seed in range(40)
    ]
    assert torch.stack(gaps).mean() < 0.016


def test_many_references_speak_for_their_own_class() -> None:
    """Classes that are confused more often than others are found to be."""
    accuracies = torch.linspace(0.6, 0.99, 10, dtype=torch.float64)
    gaps = draw_confusions(accuracies, 1000, 3).diagonal() - accuracies
    assert gaps.abs().max() < 0.05


@settings(deadline=None, max_examples=30)
@given(st.floats(0.1, 9.0), st.floats(-4, 4), st.floats(-4, 4))
def test_laplace_of_two_classes(epsilon: float, a: float, b: float) -> None:
    """Rows (1, 0) and (0, 1), scale 2/epsilon: the log odds are a sum of four distances."""
    mechanism = Laplace(epsilon, 2, clip_kind="probabilities")
    (row,) = fit_calibration(mechanism).probabilities(np.array([[a, b]]))
    odds = (abs(a) - abs(a - 1) + abs(b - 1) - abs(b)) * epsilon / 2
    assert row.tolist() == pytest.approx([1 / (1 + exp(-odds)), 1 / (1 + exp(odds))], abs=1e-9)


@settings(deadline=None, max_examples=30)
@given(st.floats(0.1, 9.0), st.floats(-4, 4), st.floats(-4, 4))
def test_gaussian_of_two_classes(epsilon: float, a: float, b: float) -> None:
    """Rows (1/2, -1/2) and (-1/2, 1/2) of the clip l1 at 1: log odds (a - b) / sigma^2."""
    mechanism = Gaussian(epsilon, 2, delta=1e-3)
    (row,) = fit_calibration(mechanism).probabilities(np.array([[a, b]]))
    odds = (a - b) / mechanism.sigma**2
    assert row.tolist() == pytest.approx([1 / (1 + exp(-odds)), 1 / (1 + exp(odds))], abs=1e-9)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=IDS)
def test_the_order_of_classes_does_not_matter(mechanism: KnownLaw) -> None:
    """Classes renamed in references and answers are renamed in the probabilities."""
    logits, labels = imperfect_logits(60, 3)
    answers = mechanism.answer(imperfect_logits(40, 5)[0])
    order = torch.tensor([3, 0, 4, 1, 2])
    renamed = torch.argsort(order)[labels]  # class order[i] becomes class i
    plain = fit_calibration(mechanism, logits, labels).probabilities(answers)
    turned = fit_calibration(mechanism, logits[:, order], renamed).probabilities(answers[:, order])
    torch.testing.assert_close(turned, plain[:, order])


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=IDS)
def test_probabilities_follow_from_the_answer_alone(mechanism: KnownLaw) -> None:
    """Of either kind, alone or among others, whatever was drawn meanwhile: post-processing."""
    reader = fit_calibration(mechanism, *imperfect_logits(60, 3))
    answers = mechanism.answer(imperfect_logits(40, 5)[0])
    state = torch.random.get_rng_state()
    probabilities = reader.probabilities(answers)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(7)
    alone = torch.cat([reader.probabilities(row[None]) for row in answers.flip(0)]).flip(0)
    torch.random.set_rng_state(state)
    torch.testing.assert_close(alone, probabilities)
    arrays = reader.probabilities(answers.numpy())
    assert isinstance(arrays, np.ndarray) and np.array_equal(arrays, probabilities.numpy())
    torch.testing.assert_close(probabilities.sum(1), torch.ones(40, dtype=torch.float64))


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=IDS)
def test_they_come_true_as_often_as_they_say(mechanism: KnownLaw) -> None:
    """Calibration error below .03, where the softmax of the answer is off by .05 or more.

    The most probable class is right at least as often as the largest value, but for chance.
    """
    reader = fit_calibration(mechanism, *imperfect_logits(400, 11))
    logits, labels = imperfect_logits(30000, 13)
    answers = mechanism.answer(logits)
    probabilities = reader.probabilities(answers)
    assert ece(probabilities, labels) < 0.03
    naive = answers.softmax(1)
    if mechanism.name != "label-only":
        assert ece(naive, labels) > 0.05
    accuracy, before = (score_probabilities(p, labels)["accuracy"] for p in (probabilities, naive))
    assert accuracy > before - 0.015


def test_frequent_references_are_no_frequent_classes() -> None:
    """Nine in ten references of class 0: an answer that tells nothing is read as all alike."""
    logits, labels = imperfect_logits(400, 17)
    kept = (labels == 0) | (torch.arange(400) % 10 == 0)
    for mechanism in (LabelOnly(1e-6, CLASSES), Laplace(1e-6, CLASSES)):
        reader = fit_calibration(mechanism, logits[kept], labels[kept])
        probabilities = reader.probabilities(mechanism.answer(logits))
        assert float((probabilities - 1 / CLASSES).abs().max()) < 1e-5


def test_a_class_without_reference_counts_as_sure() -> None:
    """It can still be told; and many references cost no more time than a fixed number."""
    logits, labels = imperfect_logits(5000, 19)
    others = labels != 2
    mechanism = LabelOnly(4.0, CLASSES)
    reader = fit_calibration(mechanism, logits[others], labels[others])
    assert isinstance(reader, BayesCalibration)
    assert len(reader.rows) <= MAX_REFERENCES
    (row,) = reader.probabilities(4.0 * torch.eye(CLASSES)[2:3].double())
    assert int(row.argmax()) == 2 and 0.5 < float(row[2]) < 0.95


def test_the_project_sampler_has_the_law_of_laplace() -> None:
    mechanism = Laplace(2.0, CLASSES)
    fast = replace(mechanism, name="discrete-laplace", disturb=add_grid_noise)
    answers = fast.answer(imperfect_logits(20, 5)[0])
    expected = fit_calibration(mechanism).probabilities(answers)
    assert torch.equal(fit_calibration(fast).probabilities(answers), expected)


def test_an_unknown_law_has_a_temperature() -> None:
    """Fitted on references: better calibrated than the softmax, the same top class."""
    mechanism: Mechanism = Opaque(Laplace(1.0, CLASSES))
    assert not isinstance(mechanism, KnownLaw)
    reader = fit_calibration(mechanism, *imperfect_logits(400, 11))
    logits, labels = imperfect_logits(4000, 13)
    answers = mechanism.answer(logits)
    probabilities = reader.probabilities(answers)
    assert ece(probabilities, labels) < 0.08 < 0.3 < ece(answers.softmax(1), labels)
    assert torch.equal(probabilities.argmax(1), answers.argmax(1))
    with pytest.raises(ValueError, match="law of 'opaque' is not known; give logits"):
        fit_calibration(mechanism)


def test_references_that_do_not_fit_are_refused() -> None:
    """Both or none, as many, of classes that there are."""
    mechanism, logits = LabelOnly(1.0, 3), torch.zeros(2, 3)
    with pytest.raises(ValueError, match="belong together"):
        fit_calibration(mechanism, logits)
    with pytest.raises(ValueError, match="2 reference rows have 1 labels"):
        fit_calibration(mechanism, logits, torch.tensor([0]))
    for known in (mechanism, Laplace(1.0, 3)):
        with pytest.raises(ValueError, match="there are 0 reference rows, must be 1 or more"):
            fit_calibration(known, logits[:0], torch.zeros(0, dtype=torch.long))
    with pytest.raises(ValueError, match="go from 0 to 3, must be from 0 to 2"):
        fit_calibration(mechanism, logits, torch.tensor([0, 3]))


@pytest.mark.parametrize("make", [LabelOnly, Laplace, Gaussian])
def test_what_scikit_learn_gives_is_taken_or_refused_with_a_remedy(
    make: type[LabelOnly] | type[Laplace] | type[Gaussian],
) -> None:
    """A binary decision function (N,), and labels that are names; the remedies help."""
    decision = np.array([2.0, -1.0, 0.5, -3.0])
    names = np.array(["yes", "no", "yes", "no"])
    mechanism = make(epsilon=4.0, classes=2)
    places = np.searchsorted(np.array(["no", "yes"]), names)
    rows = np.column_stack([-decision / 2, decision / 2])
    with pytest.raises(ValueError, match="column_stack"):
        fit_calibration(mechanism, decision, places)
    with pytest.raises(ValueError, match="column_stack"):
        mechanism.answer(decision)
    with pytest.raises(ValueError, match="searchsorted"):
        fit_calibration(mechanism, rows, names)
    for bad in (np.array([0.5, 1, 0, 1]), np.eye(2)[places]):
        with pytest.raises(ValueError, match="one whole number an image"):
            fit_calibration(mechanism, rows, bad)
    calibration = fit_calibration(mechanism, rows, places)
    probabilities = calibration.probabilities(mechanism.answer(rows))
    assert probabilities.sum(1) == pytest.approx(1)
    for epsilon in ("4", None, True):
        with pytest.raises(ValueError, match="epsilon is "):
            make(epsilon=epsilon, classes=2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="classes is '2', must be"):
        make(epsilon=4.0, classes="2")  # type: ignore[arg-type]


def test_arrays_of_any_kind_are_read_and_left_as_they_are() -> None:
    """Read-only, of the other order of bytes, of unsigned labels; under another default dtype."""
    rows = np.array([[2.0, -1.0], [0.5, 3.0]])
    odd = rows.astype(rows.dtype.newbyteorder())
    odd.flags.writeable = False
    labels = np.array([0, 1], dtype=np.uint8)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    try:
        for mechanism in (LabelOnly(4.0, 2), Laplace(4.0, 2), Gaussian(4.0, 2)):
            calibration = fit_calibration(mechanism, odd, labels)
            answers = mechanism.answer(odd)
            assert answers.dtype == np.float64
            assert calibration.probabilities(answers).shape == (2, 2)
    finally:
        torch.set_default_dtype(before)
    assert (odd == rows).all()
