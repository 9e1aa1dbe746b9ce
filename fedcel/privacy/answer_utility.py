"""What private answers are still good for.

The answers measured here protect the INPUT of one query against whoever reads the answer; see
`fedcel.privacy.privacy_settings`.
"""

import math
import time
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from fedcel.metrics import calibration, sample_half_width
from fedcel.privacy.answer_calibration import AnswerCalibration, fit_calibration
from fedcel.privacy.privacy_settings import OpenAnswers, PrivacySettings
from fedcel.privacy.protocol import Mechanism
from fedcel.short_repr import summarise_record


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

    def __repr__(self) -> str:
        """Show shapes in the place of numbers."""
        return summarise_record(self)

    def keep_rows(self, rows: int) -> "LabelledLogits":
        """Keep the messages about each image that give about so many rows, one at least.

        Args:
            rows: How many are enough.

        Returns:
            The first messages about all images.
        """
        images = len(self.labels) // self.messages
        messages = min(self.messages, max(1, math.ceil(rows / max(images, 1))))
        end = messages * images
        return LabelledLogits(self.logits[:end], self.labels[:end], messages)

    def repeat(self, times: int) -> "LabelledLogits":
        """Answer each message so many times.

        Args:
            times: 1 or more.

        Returns:
            The same messages, one time after the other.
        """
        logits, labels = self.logits.repeat(times, 1), self.labels.repeat(times)
        return LabelledLogits(logits, labels, times * self.messages)


class AnswerScore(NamedTuple):
    """What private answers to known images were worth.

    Attributes:
        accuracy: How often the most probable class was right, in [0, 1].
        half_width: Half of its 95 % interval, over images.
        top1_kept: How often the most probable class was the net's own.
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
        """Say whether the answers are not shown to be better than a guess.

        Args:
            classes: From which a guess is drawn.

        Returns:
            Whether the accuracy's interval reaches down to 1 / `classes`.
        """
        return self.accuracy - self.half_width <= 1 / classes


def score_answers(
    mechanism: Mechanism, reader: AnswerCalibration, images: LabelledLogits
) -> AnswerScore:
    """Draw one private answer for each message, and score its probabilities.

    Args:
        mechanism: What gives the answers.
        reader: What makes probabilities of them.
        images: The net's logits, with the right classes.

    Returns:
        The scores.

    Raises:
        ValueError: There are no logits, or they are undefined.
    """
    if len(images.logits) == 0:
        raise ValueError("no logits to measure, must be at least one row")
    start = time.process_time()
    probabilities = reader.probabilities(mechanism.answer(images.logits.double()))
    seconds = (time.process_time() - start) / len(images.logits)
    return score_probabilities(probabilities, images)._replace(seconds=seconds)


def score_probabilities(probabilities: Float[Tensor, "N C"], images: LabelledLogits) -> AnswerScore:
    """Score probabilities, however they came about; their `seconds` are 0.

    Args:
        probabilities: (N, C).
        images: The net's logits, with the right classes.

    Returns:
        The scores.
    """
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
    """Measure what one draw of private answers is still good for.

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
    if len(images.logits) == 0:
        raise ValueError("no logits to measure, must be at least one row")
    before = images.logits.double().softmax(1)
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
        "confidence-before": float(before.amax(1).mean()),
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
