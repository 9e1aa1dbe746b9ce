"""Choice of a mechanism, clip and epsilon: all are scored, the cheapest that suffices is named."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from fedcel.privacy import (
    AnswerScore,
    GaussianAnswers,
    LabelledLogits,
    LabelOnlyAnswers,
    LaplaceAnswers,
    OwnAnswers,
    PrivacySettings,
    accuracy_ceiling,
    fit_calibration,
    score_answers,
)

VALIDATION_ANSWERS = 4000
"""Answers by which an option is chosen, so that its noise does not choose."""


class AnswerOption(NamedTuple):
    """One mechanism at one clip and epsilon, with the scores of its answers.

    Attributes:
        privacy: The settings.
        validation: Scores on validation images, by which options are chosen; each half of them is
            answered by references of the other half.
        test: Scores on test images, which choose nothing.
        ceiling: The accuracy that no answer as private exceeds on balanced classes.
    """

    privacy: PrivacySettings
    validation: AnswerScore
    test: AnswerScore
    ceiling: float


def list_options(
    privacy: PrivacySettings, epsilons: Iterable[float], clips: Iterable[float]
) -> list[PrivacySettings]:
    """List each built-in mechanism, and a user's own, with each clip, at each epsilon.

    `clips` are sizes of the clips `l1` and `clamp`. The epsilons of an option follow each other.
    """
    shapes = [*product(("l1", "clamp"), clips), ("probabilities", 1.0)]
    kinds: list[PrivacySettings] = [LabelOnlyAnswers()]
    if isinstance(privacy, OwnAnswers):
        kinds.append(privacy)
    for noise in (
        LaplaceAnswers(),
        LaplaceAnswers(mechanism="discrete-laplace"),
        GaussianAnswers(delta=getattr(privacy, "delta", GaussianAnswers().delta)),
    ):
        for kind, clip in shapes:
            kinds.append(noise.model_copy(update={"clip_kind": kind, "clip": clip}))
    return [
        kind.model_copy(update={"epsilon": epsilon}) for kind, epsilon in product(kinds, epsilons)
    ]


def score_options(
    options: Iterable[PrivacySettings], validation: LabelledLogits, test: LabelledLogits
) -> Iterator[AnswerOption]:
    """Score options one after the other, on validation and test images."""
    times = math.ceil(VALIDATION_ANSWERS / max(len(validation.labels), 1))
    halves = split_images(validation)
    classes = test.logits.shape[1]
    for privacy in options:
        mechanism = privacy.build(classes)
        scores = [
            score_answers(
                mechanism,
                fit_calibration(mechanism, other.logits, other.labels),
                half.repeat(times),
            )
            for half, other in zip(halves, reversed(halves), strict=True)
        ]
        reader = fit_calibration(mechanism, validation.logits, validation.labels)
        yield AnswerOption(
            privacy,
            average_halves(scores),
            score_answers(mechanism, reader, test),
            accuracy_ceiling(mechanism.epsilon, mechanism.delta, classes),
        )


def split_images(images: LabelledLogits) -> list[LabelledLogits]:
    """Return every second image, and the others; all messages about an image stay together."""
    logits = images.logits.view(images.messages, -1, images.logits.shape[1])
    labels = images.labels.view(images.messages, -1)
    return [
        LabelledLogits(
            logits[:, first::2].reshape(-1, logits.shape[2]),
            labels[:, first::2].reshape(-1),
            images.messages,
        )
        for first in (0, 1)
    ]


def average_halves(scores: Sequence[AnswerScore]) -> AnswerScore:
    """Return the mean of scores of disjoint images; the interval is that of all of them."""
    means = AnswerScore(*(math.fsum(values) / len(scores) for values in zip(*scores, strict=True)))
    return means._replace(half_width=means.half_width / math.sqrt(len(scores)))


def choose_cheapest(options: Iterable[AnswerOption], least_accuracy: float) -> AnswerOption | None:
    """Choose the most accurate option of the least epsilon that suffices on validation images."""
    good = [option for option in options if option.validation.accuracy >= least_accuracy]
    return min(
        good, key=lambda option: (option.privacy.epsilon, -option.validation.accuracy), default=None
    )


def label_only_epsilon(accuracy: float, loss: float, classes: int) -> float:
    """Return the epsilon at which labels by themselves lose no more than an accuracy.

    With chance p of the truth, (1 - p)/(C - 1) of any other label, an answer is right with chance
    a p + (1 - a)(1 - p)/(C - 1), a the accuracy of the net's own labels, above 1 / C; this is
    solved for p = e^eps/(e^eps + C - 1). Epsilon is 0 where a guess is good enough, infinite where
    nothing may be lost.
    """
    by_chance = (1 - accuracy) / (classes - 1)
    truth = (accuracy - loss - by_chance) / (accuracy - by_chance)
    if truth >= 1:
        return math.inf
    return max(0.0, math.log((classes - 1) * truth / (1 - truth))) if truth > 0 else 0.0
