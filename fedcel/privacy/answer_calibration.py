"""Class probabilities of private answers, which come true as often as they say.

The softmax of noisy logits takes the noise for knowledge. Bayes' rule does not: the law g of the
noise is known, and reference rows c_j of images with known labels y_j say what is answered without
noise. For an answer a,

    P(y | a) is in proportion to the mean over references j of class y of g(a | c_j),

with all classes equally likely beforehand. Of an answer that is only a label, it is enough to know
how often the net takes each class for each other one, which `estimate_confusions` says. It is
computed only from the answer (post-processing), so it costs no privacy of the query's input.
Nothing is promised to the REFERENCE images: they are the server's own, and public as far as this
mechanism goes.
"""

import math
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

import numpy as np
import scipy
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from fedcel.privacy.clip import check_logits
from fedcel.privacy.label_only import LabelOnly
from fedcel.privacy.protocol import KnownLaw, Mechanism
from fedcel.short_repr import show_shapes
from fedcel.tensors import Array, match_kind, to_tensor

MAX_REFERENCES = 512
"""References of all classes together, where more would only take time; `label-only` has all."""
MIN_PER_CLASS = 8
"""References of a class that are kept in any case."""
SURE_LOGIT = 1e30
"""Above the other logits of a row that has no doubt, whatever the clip."""
FITTED_ANSWERS = 4096
"""Answers to which a temperature is fitted."""
PRIOR_WEIGHTS = tuple(2.0**power for power in range(-1, 21))
"""Numbers of references of a class that the confusions of all classes may count for."""


References = tuple[Float[Tensor, "V C"], Int[Tensor, " V"]]
"""A net's logits of reference images, and the images' classes."""


@runtime_checkable
class AnswerCalibration(Protocol):
    """Turns private answers into probabilities."""

    def probabilities(self, answers: Array) -> Array:
        """Return each class's probability given a private answer.

        Args:
            answers: Tensor or NumPy array (B, C), as the mechanism gave them.

        Returns:
            Rows (B, C) that sum to 1, in double precision, an array of the same kind.
        """
        ...


def fit_calibration(
    mechanism: Mechanism, logits: Array | None = None, labels: Array | None = None
) -> AnswerCalibration:
    """Fit a calibration that turns a mechanism's answers into probabilities.

    Example::

        mechanism = LabelOnly(epsilon=4, classes=10)
        calibration = fit_calibration(mechanism, validation_logits, validation_labels)
        calibration.probabilities(mechanism.answer(logits))

    Args:
        mechanism: What gives the answers.
        logits: The net's logits of reference images, (V, C); None: assume a net that is always
            certain and right.
        labels: Classes of the reference images, (V,).

    Returns:
        Bayes' rule where the mechanism's law is known (`KnownLaw`); else a softmax whose
        temperature is fitted to answers about the reference images.

    Raises:
        ValueError: There are logits without labels or as many as not, none for a mechanism whose
            law is not known, or they are not rows of a logit a class and places of classes.
    """
    references = read_references(mechanism, logits, labels)
    if isinstance(mechanism, LabelOnly):
        return _count_labels(mechanism, references)
    if isinstance(mechanism, KnownLaw):
        return _gather_references(mechanism, references)
    if references is None:
        raise ValueError(
            f"the law of {mechanism.name!r} is not known; give logits and labels of reference "
            "images, or the mechanism a log_density"
        )
    return _fit_temperature(mechanism, *references)


def read_references(
    mechanism: Mechanism, logits: Tensor | np.ndarray | None, labels: Tensor | np.ndarray | None
) -> References | None:
    """Return references as tensors, None where none are given; ValueError on any that do not fit.

    Labels are whole numbers: no rounding makes others places of classes.
    """
    if (logits is None) != (labels is None):
        raise ValueError("logits and labels of reference images belong together; give both or none")
    if logits is None or labels is None:
        return None
    rows = to_tensor(logits, "logits of reference images")
    try:
        places = to_tensor(labels, "labels of reference images")
    except ValueError as error:
        remedy = "numpy.searchsorted(model.classes_, labels) of scikit-learn's"
        raise ValueError(f"{error}; give the places of classes, as {remedy}") from error
    if rows.dim() != 2:
        check_logits(rows, getattr(mechanism, "classes", 2))
    if places.dim() != 1 or (places.is_floating_point() and bool((places != places.trunc()).any())):
        raise ValueError(
            f"labels are {places.dtype} of shape {tuple(places.shape)}, must be one whole number "
            "an image, the place of its class; one-hot rows are labels.argmax(1)"
        )
    if len(rows) != len(places):
        raise ValueError(f"{len(rows)} reference rows have {len(places)} labels, must be as many")
    if not len(rows):
        raise ValueError("there are 0 reference rows, must be 1 or more; or give none for all sure")
    places, classes = places.long(), rows.shape[1]
    if not 0 <= int(places.min()) <= int(places.max()) < classes:
        raise ValueError(
            f"labels of references go from {places.min()} to {places.max()}, must be from 0 to "
            f"{classes - 1}"
        )
    return rows, places


@show_shapes
@final
@dataclass(frozen=True, eq=False)
class BayesCalibration:
    """Bayes' rule with reference rows; see `fit_calibration`.

    Attributes:
        mechanism: What gives the answers.
        rows: Answers without noise, (R, C).
        shares: Share of a class's images that have each of them, (R, C); columns sum to 1.
    """

    mechanism: KnownLaw
    rows: Float[Tensor, "R C"]
    shares: Float[Tensor, "R C"]

    def probabilities(self, answers: Array) -> Array:
        """Return each class's probability; see `AnswerCalibration.probabilities`."""
        density = self.mechanism.log_density(to_tensor(answers, "answers"), self.rows)
        by_class = density.softmax(1) @ self.shares
        return match_kind(by_class / by_class.sum(1, keepdim=True), answers)


@final
@dataclass(frozen=True)
class TemperatureCalibration:
    """Softmax of scaled answers, for a mechanism whose law is not known.

    Attributes:
        scale: Factor of an answer before the softmax, 0 or more.
    """

    scale: float

    def probabilities(self, answers: Array) -> Array:
        """Return each class's probability; see `AnswerCalibration.probabilities`."""
        return match_kind((self.scale * to_tensor(answers, "answers").double()).softmax(1), answers)


def estimate_confusions(
    tops: Int[Tensor, " V"], labels: Int[Tensor, " V"], classes: int
) -> Float[Tensor, "C C"]:
    """Estimate P(top class | class) of a net, a row a class, from references' tops and labels.

    A class's own counts are mixed with the confusions of a net that errs alike in all classes, as
    often as this one does: P(t | y) = (n_yt + a m_yt) / (n_y + a). The weight a is the one under
    which the counts are most likely (Minka, Estimating a Dirichlet distribution, 2000, equation
    53). So few references speak for all classes together, and many for their own: with 15 of each
    of ten classes the counts by themselves leave the probabilities off by several points.
    """
    counts = torch.zeros(classes, classes, dtype=torch.float64)
    counts.index_put_((labels, tops), torch.ones(len(labels), dtype=torch.float64), accumulate=True)
    right = float((counts.diagonal().sum() + 0.5) / (counts.sum() + 1))
    pooled = torch.full_like(counts, (1 - right) / (classes - 1)).fill_diagonal_(right)
    totals = counts.sum(1, keepdim=True)

    def log_likelihood(weight: float) -> float:
        prior = torch.tensor(weight, dtype=torch.float64)
        per_class = torch.lgamma(prior) - torch.lgamma(prior + totals)
        per_cell = torch.lgamma(weight * pooled + counts) - torch.lgamma(weight * pooled)
        return float(per_class.sum() + per_cell.sum())

    weight = max(PRIOR_WEIGHTS, key=log_likelihood)
    return (counts + weight * pooled) / (totals + weight)


def _count_labels(mechanism: LabelOnly, references: References | None) -> BayesCalibration:
    """Return Bayes' rule for `label-only`; without references, of a net that is always right."""
    confusions = torch.eye(mechanism.classes, dtype=torch.float64)
    if references is not None:
        logits, labels = references
        tops = mechanism.answer_without_noise(logits).argmax(1)
        confusions = estimate_confusions(tops, labels, mechanism.classes)
    return BayesCalibration(mechanism, _answer_when_sure(mechanism), confusions.T)


def _gather_references(mechanism: KnownLaw, references: References | None) -> BayesCalibration:
    """Return Bayes' rule with the first references of each class, a sure one where it has none."""
    classes = mechanism.classes
    rows, labels = _answer_when_sure(mechanism), torch.arange(classes)
    if references is not None:
        most = max(MIN_PER_CLASS, MAX_REFERENCES // classes)
        by_class = [(references[1] == label).nonzero().flatten()[:most] for label in range(classes)]
        places = torch.cat(by_class)
        is_missing = torch.tensor([not len(members) for members in by_class])
        rows = torch.cat([rows[is_missing], mechanism.answer_without_noise(references[0][places])])
        labels = torch.cat([labels[is_missing], references[1][places]])
    members = one_hot(labels, classes).double()
    return BayesCalibration(mechanism, rows, members / members.sum(0))


def _answer_when_sure(mechanism: KnownLaw) -> Float[Tensor, "C C"]:
    """Return the answer of a net that is sure of each class, without noise."""
    return mechanism.answer_without_noise(
        SURE_LOGIT * torch.eye(mechanism.classes, dtype=torch.float64)
    )


def _fit_temperature(
    mechanism: Mechanism, logits: Tensor, labels: Tensor
) -> TemperatureCalibration:
    """Fit the scale that makes the references' labels most likely, over fresh answers.

    Guo et al., ICML 2017, section 4.2, with the answers' noise instead of the net's doubt.
    """
    repeats = math.ceil(FITTED_ANSWERS / len(logits))
    answers = mechanism.answer(logits.repeat(repeats, 1)).double()
    truth = labels.repeat(repeats)

    def loss(log_scale: float) -> float:  # has one minimum
        return float(cross_entropy(math.exp(log_scale) * answers, truth))

    fit = scipy.optimize.minimize_scalar(loss, bounds=(-20, 20), method="bounded")
    return TemperatureCalibration(math.exp(fit.x))
