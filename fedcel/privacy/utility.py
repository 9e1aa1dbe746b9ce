"""What private logits are still good for.

The answers measured here protect the INPUT of one query against whoever reads the answer; see
`fedcel.privacy.mechanism`.
"""

import math

from jaxtyping import Float, Int
from torch import Tensor

from fedcel.privacy.mechanism import clip, private_logits, project_simplex
from fedcel.settings_groups import Privacy


def utility(
    logits: Float[Tensor, "N C"], labels: Int[Tensor, " N"], privacy: Privacy
) -> dict[str, float]:
    """Return, for one draw of noise at `privacy.epsilon`, shares in [0, 1].

    `accuracy` of the noisy top class; `top1-kept`, how often it is the top class of `logits`;
    `confidence-before` and `-after` the noise, the mean largest probability of clipped logits;
    `ceiling`, the accuracy no epsilon-DP answer exceeds on balanced classes. ValueError on no
    logits.
    """
    if len(logits) == 0:
        raise ValueError("no logits to measure, must be at least one row")
    answer = private_logits(logits.double(), privacy)
    top = answer.argmax(1)
    return {
        "accuracy": float((top == labels).double().mean()),
        "top1-kept": float((top == logits.argmax(1)).double().mean()),
        "confidence-before": confidence(clip(logits, privacy.clip_kind, privacy.clip), privacy),
        "confidence-after": confidence(answer, privacy),
        "ceiling": ceiling(privacy, logits.shape[1]),
    }


def confidence(answer: Float[Tensor, "N C"], privacy: Privacy) -> float:
    """Return the mean largest probability as the reader of an answer takes it.

    Softmax of logits; noisy probabilities are projected back onto the simplex.
    """
    if privacy.clip_kind == "probabilities":
        return float(project_simplex(answer, 1.0).amax(1).mean())
    return float(answer.softmax(1).amax(1).mean())


def ceiling(privacy: Privacy, classes: int) -> float:
    """Return e^eps / (e^eps + C - 1), 1 without a mechanism.

    K-ary randomised response attains it: Kairouz, Oh and Viswanath, JMLR 2016, section 3.
    """
    if privacy.mechanism == "none":
        return 1.0
    return 1 / (1 + (classes - 1) * math.exp(-privacy.epsilon))
