"""What private answers are still good for.

The answers measured here protect the INPUT of one query against whoever reads the answer; see
`fedcel.privacy.build_mechanism`.
"""

import math

from jaxtyping import Float, Int
from torch import Tensor

from fedcel.privacy.build_mechanism import build_mechanism
from fedcel.privacy.clip import clip_rows, project_simplex
from fedcel.privacy.noise_mechanisms import Unit, clip_unit
from fedcel.settings import NOISES, PrivacySettings


def measure_utility(
    logits: Float[Tensor, "N C"], labels: Int[Tensor, " N"], privacy: PrivacySettings
) -> dict[str, float]:
    """Return, for one draw of noise at `privacy.epsilon`, shares in [0, 1].

    `accuracy` of the answers' top class; `top1-kept`, how often it is the top class of `logits`;
    `confidence-before` and `-after` the noise, the mean largest probability, before it of clipped
    logits where the mechanism clips; `accuracy_ceiling`, the accuracy that no answer as private
    exceeds on balanced classes. ValueError on no logits.
    """
    if len(logits) == 0:
        raise ValueError("no logits to measure, must be at least one row")
    before, unit = rows_before_noise(logits.double(), privacy)
    answer, read_as, best = before, unit, 1.0
    if privacy.mechanism != "none":
        mechanism = build_mechanism(privacy, logits.shape[1])
        answer, read_as = mechanism.answer(logits.double()), mechanism.unit
        best = accuracy_ceiling(mechanism.epsilon, mechanism.delta, logits.shape[1])
    top = answer.argmax(1)
    return {
        "accuracy": float((top == labels).double().mean()),
        "top1-kept": float((top == logits.argmax(1)).double().mean()),
        "confidence-before": mean_confidence(before, unit),
        "confidence-after": mean_confidence(answer, read_as),
        "ceiling": best,
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
    others = (classes - 1) * math.exp(-epsilon)
    return (1 + others * delta) / (1 + others)
