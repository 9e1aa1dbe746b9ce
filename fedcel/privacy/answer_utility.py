"""What private answers are still good for.

The answers measured here protect the INPUT of one query against whoever reads the answer; see
`fedcel.privacy.mechanism_builder`.
"""

import math

from jaxtyping import Float, Int
from torch import Tensor

from fedcel.privacy.clip import clip_rows, project_simplex
from fedcel.privacy.mechanism_builder import build_mechanism
from fedcel.privacy.noise_mechanisms import Unit, clip_unit
from fedcel.settings import NOISES, PrivacySettings


def measure_utility(
    logits: Float[Tensor, "N C"], labels: Int[Tensor, " N"], privacy: PrivacySettings
) -> dict[str, float]:
    """Measure what one draw of private answers is still good for.

    Args:
        logits: (N, C), before any clip.
        labels: (N,), the true classes.
        privacy: Mechanism, epsilon, delta and clip.

    Returns:
        Shares in [0, 1]: `accuracy` of the answers' top class; `top1-kept`, how often that is the
        top class of `logits`; `confidence-before` and `confidence-after` the noise, the mean
        largest probability, before it of clipped logits where the mechanism clips; `ceiling`, the
        accuracy that no answer as private exceeds on balanced classes.

    Raises:
        ValueError: There are no logits, or they are undefined.
    """
    if len(logits) == 0:
        raise ValueError("no logits to measure, must be at least one row")
    before, unit = rows_before_noise(logits.double(), privacy)
    answer = before
    answer_unit = unit
    ceiling = 1.0
    if privacy.mechanism != "none":
        mechanism = build_mechanism(privacy, logits.shape[1])
        answer, answer_unit = mechanism.answer(logits.double()), mechanism.unit
        ceiling = accuracy_ceiling(mechanism.epsilon, mechanism.delta, logits.shape[1])
    top = answer.argmax(1)
    return {
        "accuracy": float((top == labels).double().mean()),
        "top1-kept": float((top == logits.argmax(1)).double().mean()),
        "confidence-before": mean_confidence(before, unit),
        "confidence-after": mean_confidence(answer, answer_unit),
        "ceiling": ceiling,
    }


def rows_before_noise(
    logits: Float[Tensor, "N C"], privacy: PrivacySettings
) -> tuple[Float[Tensor, "N C"], Unit]:
    """Return the rows that the mechanism disturbs, and their unit."""
    if privacy.mechanism in (*NOISES, "none"):
        return clip_rows(logits, privacy.clip_kind, privacy.clip), clip_unit(privacy.clip_kind)
    return logits, "logits"


def mean_confidence(answer: Float[Tensor, "N C"], unit: Unit) -> float:
    """Return the mean largest probability as the reader of an answer takes it.

    Softmax of logits; noisy probabilities are projected back onto the simplex.
    """
    if unit == "probabilities":
        return float(project_simplex(answer, 1.0).amax(1).mean())
    return float(answer.softmax(1).amax(1).mean())


def accuracy_ceiling(epsilon: float, delta: float, classes: int) -> float:
    """Return (e^eps + (C - 1) delta)/(e^eps + C - 1), at most 1.

    From P(A_i | i) <= e^eps P(A_i | j) + delta, summed over all pairs i, j. K-ary randomised
    response attains it at delta 0: Kairouz, Oh and Viswanath, JMLR 2016, section 3.
    """
    odds = (classes - 1) * math.exp(-epsilon)
    return (1 + odds * delta) / (1 + odds)
