"""Utility of private answers: accuracy, confidence and calibration."""

import math
import time
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from fedcel.metrics import calibration, sample_half_width
from fedcel.privacy.answer_calibration import AnswerCalibration, fit_calibration
from fedcel.privacy.privacy_settings import OpenAnswers, PrivacySettings
from fedcel.privacy.protocol import Mechanism
from fedcel.short_repr import show_shapes

USUAL_EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Privacy losses of an answer whose utility every run states."""


@show_shapes
class LabelledLogits(NamedTuple):
    """A net's logits about images whose classes are known.

    Attributes:
        logits: (N, C), before any clip. Of several messages about each image, all images of the
            first messages come first.
        labels: Their classes, (N,).
        messages: Messages about each image.
    """

    logits: Float[Tensor, "N C"]
    labels: Int[Tensor, " N"]
    messages: int = 1

    def keep_rows(self, rows: int) -> "LabelledLogits":
        """Keep the first messages about each image that give about `rows` rows, one at least."""
        images = len(self.labels) // self.messages
        messages = min(self.messages, max(1, math.ceil(rows / max(images, 1))))
        end = messages * images
        return LabelledLogits(self.logits[:end], self.labels[:end], messages)

    def repeat(self, times: int) -> "LabelledLogits":
        """Repeat all messages, one time after the other, 1 time or more."""
        logits, labels = self.logits.repeat(times, 1), self.labels.repeat(times)
        return LabelledLogits(logits, labels, times * self.messages)


class AnswerScore(NamedTuple):
    """Scores of private answers to known images.

    Attributes:
        accuracy: Share of answers whose most probable class was right.
        half_width: Half of its 95 % interval, over images.
        top1_kept: Share of answers whose most probable class was the net's own.
        confidence: Mean probability of the most probable class.
        ece: Expected calibration error of these probabilities.
        seconds: Processor time that an answer and its probabilities took.
    """

    accuracy: float
    half_width: float
    top1_kept: float
    confidence: float
    ece: float
    seconds: float

    def is_at_chance(self, classes: int) -> bool:
        """Whether the accuracy's interval reaches down to a guess, 1 / `classes`."""
        return self.accuracy - self.half_width <= 1 / classes


def score_answers(
    mechanism: Mechanism, reader: AnswerCalibration, images: LabelledLogits
) -> AnswerScore:
    """Draw one private answer for each message, and score its probabilities.

    Args:
        mechanism: Source of the answers.
        reader: Makes probabilities of them.
        images: The net's logits, with the right classes.

    Returns:
        The scores.

    Raises:
        ValueError: There are no logits, or they are undefined.
    """
    start = time.process_time()
    probabilities = reader.probabilities(mechanism.answer(images.logits.double()))
    seconds = time.process_time() - start
    score = score_probabilities(probabilities, images)
    return score._replace(seconds=seconds / len(images.logits))


def score_probabilities(probabilities: Float[Tensor, "N C"], images: LabelledLogits) -> AnswerScore:
    """Score probabilities, however they came about; their `seconds` are 0.

    Args:
        probabilities: (N, C).
        images: The net's logits, with the right classes.

    Returns:
        The scores.

    Raises:
        ValueError: There are no logits.
    """
    if len(images.logits) == 0:
        raise ValueError("no logits to measure, must be at least one row")
    top = probabilities.argmax(1)
    is_right = (top == images.labels).double()
    by_image = is_right.view(images.messages, -1).mean(0)
    return AnswerScore(
        accuracy=float(is_right.mean()),
        half_width=sample_half_width(by_image, low=0.0, high=1.0),
        top1_kept=float((top == images.logits.argmax(1)).double().mean()),
        confidence=float(probabilities.amax(1).mean()),
        ece=calibration.ece(probabilities, images.labels),
        seconds=0.0,
    )


def measure_utility(
    images: LabelledLogits, privacy: PrivacySettings, references: LabelledLogits | None = None
) -> dict[str, float]:
    """Measure the utility of one draw of private answers.

    Args:
        images: The net's logits, with the right classes.
        privacy: Mechanism, epsilon, delta and clip.
        references: Of other images, to read the answers by; see `fit_calibration`.

    Returns:
        Shares in [0, 1]: `accuracy` of the answers' most probable class; `top1-kept`, how often
        that is the top class of the logits; `confidence-before`, the mean largest probability of
        the logits as they are, and `confidence-after`, that of the answers; `ece` of the answers'
        probabilities; `ceiling`, the accuracy that no answer as private exceeds on balanced
        classes.

    Raises:
        ValueError: There are no logits, or they are undefined.
    """
    ceiling = 1.0
    if isinstance(privacy, OpenAnswers):
        rows = privacy.clip_logits(images.logits)
        is_distribution = privacy.clip_kind == "probabilities"
        score = score_probabilities(rows if is_distribution else rows.softmax(1), images)
    else:
        classes = images.logits.shape[1]
        mechanism = privacy.build(classes)
        reader = fit_calibration(mechanism, *(references or (None, None))[:2])
        score = score_answers(mechanism, reader, images)
        ceiling = accuracy_ceiling(mechanism.epsilon, mechanism.delta, classes)
    return {
        "accuracy": score.accuracy,
        "top1-kept": score.top1_kept,
        "confidence-before": float(images.logits.double().softmax(1).amax(1).mean()),
        "confidence-after": score.confidence,
        "ece": score.ece,
        "ceiling": ceiling,
    }


def accuracy_ceiling(epsilon: float, delta: float, classes: int) -> float:
    """Bound how often a private answer can be right: (e^eps + (C - 1) delta)/(e^eps + C - 1).

    From P(A_i | i) <= e^eps P(A_i | j) + delta, summed over all pairs i, j. K-ary randomised
    response attains it at delta 0.

    Args:
        epsilon: Privacy loss of an answer, in nats.
        delta: Chance by which it may be exceeded.
        classes: C, equally frequent.

    Returns:
        The largest accuracy, at most 1.

    References:
        Kairouz, Oh and Viswanath, JMLR 2016, section 3.
    """
    odds = (classes - 1) * math.exp(-epsilon)
    return (1 + odds * delta) / (1 + odds)
