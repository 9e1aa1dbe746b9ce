"""A label alone, by k-ary randomised response: Kairouz, Oh and Viswanath, JMLR 2016, section 3.

The top class is told with chance p = e^eps/(e^eps + C - 1), any other one with equal chances. No
epsilon-DP answer about balanced classes is right more often. OpenDP confirms the chance; the labels
are drawn here, all at once and in whole numbers, because OpenDP's sampler takes thirty times as
long, one after the other.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Literal, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.privacy.array_kind import Array, match_kind, to_tensor
from fedcel.privacy.clip import check_logits
from fedcel.privacy.discrete_laplace import draw_below
from fedcel.privacy.epsilon_range import check_epsilon
from fedcel.privacy.noise_mechanisms import import_opendp
from fedcel.privacy.protocol import PROTECTS
from fedcel.privacy.sensitivity import check_classes

CHANCE_STEPS = 2**62
"""Chances are multiples of one in so many, exactly."""


@final
@dataclass(frozen=True)
class LabelOnly:
    """Pure epsilon-DP labels; no clip plays a part.

    Example::

        mechanism = LabelOnly(epsilon=4, classes=10)
        answers = mechanism.disturb_labels(logits.argmax(1))

    Attributes:
        epsilon: Privacy loss of one answer, in nats, 1e-9 or more.
        classes: Labels that can be told, 2 or more.
        name: The setting's word for it.
        delta: 0.
        protects: What is protected against whom.
        unit: What an answer's values are.
    """

    epsilon: float
    classes: int
    name: str = "label-only"
    delta: float = 0.0
    protects: str = PROTECTS
    unit: Literal["logits", "probabilities"] = "logits"

    def __post_init__(self) -> None:
        """Refuse what cannot be kept: ValueError."""
        check_response(self.epsilon, self.classes)

    def answer(self, logits: Array) -> Array:
        """Return rows of epsilon at the drawn label and 0 elsewhere, in double precision.

        Softmax makes of such a row each class's chance given the label, for balanced classes and a
        model that is always right.

        Args:
            logits: Tensor or NumPy array (B, C); each row is one answer.

        Returns:
            One row (B, C) an answer, an array of the same kind.

        Raises:
            ValueError: Logits are undefined, or of another number of classes.
        """
        rows = to_tensor(logits)
        check_logits(rows, self.classes)
        tops = rows.detach().cpu().numpy().argmax(1)  # small groups cost half of what torch takes
        labels = draw_labels(tops, self.classes, truth_chance(self.epsilon, self.classes))
        marked = np.zeros((len(labels), self.classes))
        marked[np.arange(len(labels)), labels] = self.epsilon
        return match_kind(torch.from_numpy(marked), logits)

    def disturb_labels(self, labels: Array) -> Array:
        """Tell each label with the chance that epsilon allows, else any other one.

        Args:
            labels: Tensor or NumPy array (B,) of whole numbers, 0 or more and below C; each is one
                answer.

        Returns:
            Labels (B,), an array of the same kind.

        Raises:
            ValueError: A label is no class.
        """
        tops = to_tensor(labels)
        if tops.is_floating_point() or not ((tops >= 0) & (tops < self.classes)).all():
            raise ValueError(
                f"labels are {tops.dtype} from {tops.min()} to {tops.max()}, must be whole numbers "
                f"from 0 to {self.classes - 1}; pass rows of logits to `answer`"
            )
        truth = truth_chance(self.epsilon, self.classes)
        return match_kind(torch.from_numpy(draw_labels(tops.numpy(), self.classes, truth)), labels)

    def answer_without_noise(self, logits: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
        """Return the row that tells the top class.

        Args:
            logits: (B, C).

        Returns:
            Rows (B, C), in double precision.

        Raises:
            ValueError: Logits are undefined, or of another number of classes.
        """
        check_logits(logits, self.classes)
        return self._mark(logits.argmax(1))

    def log_density(
        self, answers: Float[Tensor, "Q C"], rows: Float[Tensor, "M C"]
    ) -> Float[Tensor, "Q M"]:
        """Return epsilon where answer and row tell the same class, else 0.

        Args:
            answers: (Q, C), as `answer` gives them.
            rows: (M, C), as `answer_without_noise` gives them.

        Returns:
            Log-chances (Q, M) in nats, up to one number for all pairs.
        """
        return torch.eq(answers.argmax(1)[:, None], rows.argmax(1)).double() * self.epsilon

    def _mark(self, labels: Int[Tensor, " B"]) -> Float[Tensor, "B C"]:
        """Return rows of epsilon at each label."""
        return self.epsilon * torch.nn.functional.one_hot(labels, self.classes).double()


def draw_labels(tops: Int[np.ndarray, " B"], classes: int, truth: float) -> Int[np.ndarray, " B"]:
    """Return each label with chance `truth`, rounded down to 2^-62, else any other one.

    Uniform whole numbers of the system's secure generator decide; the time taken tells nothing.
    """
    is_true = draw_below(CHANCE_STEPS, len(tops)) < math.floor(Fraction(truth) * CHANCE_STEPS)
    others = draw_below(classes - 1, len(tops))
    others += others >= tops  # counted without the top class
    return np.where(is_true, tops, others)


@cache
def truth_chance(epsilon: float, classes: int) -> float:
    """Return the chance p of telling the top class, rounded down until OpenDP confirms epsilon."""
    check_response(epsilon, classes)
    p = 1 / (1 + (classes - 1) * math.exp(-epsilon))
    make = import_opendp().m.make_randomized_response
    while True:
        p = math.nextafter(p, 0)
        if make([*range(classes)], prob=p).map(1) <= epsilon:
            return p


def check_response(epsilon: float, classes: int) -> None:
    """Refuse an epsilon below 1e-9 or without end, and fewer than two classes: ValueError."""
    check_epsilon(epsilon, "label-only")
    check_classes(classes)
