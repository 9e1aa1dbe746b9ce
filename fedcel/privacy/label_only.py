"""Label-only answers by randomised response: Kairouz, Oh and Viswanath, JMLR 2016, section 3.

The top class is told with chance p = e^eps/(e^eps + C - 1), any other one with equal chances. No
epsilon-DP answer about balanced classes is right more often. OpenDP confirms the chance; the labels
are drawn here, all at once and in whole numbers, because OpenDP's sampler takes thirty times as
long, one after the other.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.privacy.clip import check_logits
from fedcel.privacy.discrete_laplace import draw_below
from fedcel.privacy.epsilon_range import check_epsilon
from fedcel.privacy.noise_mechanisms import import_opendp
from fedcel.privacy.protocol import PROTECTS, Unit
from fedcel.ranges import check_whole
from fedcel.tensors import Array, match_kind, to_tensor

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
        protects: Sentence that says what is protected against whom.
        unit: Unit of an answer's values.
    """

    epsilon: float
    classes: int
    name: str = "label-only"
    delta: float = 0.0
    protects: str = PROTECTS
    unit: Unit = "logits"

    def __post_init__(self) -> None:
        """Refuse an epsilon below 1e-9 or without end, and fewer than two classes: ValueError."""
        check_epsilon(self.epsilon, "label-only")
        check_whole("classes", self.classes, 2)

    def answer(self, logits: Array) -> Array:
        """Return rows of epsilon at the drawn label and 0 elsewhere; see `Mechanism.answer`.

        Softmax makes of such a row each class's chance given the label, for balanced classes and a
        model that is always right.
        """
        tops = self._find_tops(to_tensor(logits, "logits"))
        return match_kind(self._mark(draw_labels(tops, self.epsilon, self.classes)), logits)

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
        tops = to_tensor(labels, "labels")
        if tops.is_floating_point() or not ((tops >= 0) & (tops < self.classes)).all():
            raise ValueError(
                f"labels are {tops.dtype} from {tops.min()} to {tops.max()}, must be whole numbers "
                f"from 0 to {self.classes - 1}; pass rows of logits to `answer`"
            )
        drawn_labels = draw_labels(tops.numpy(), self.epsilon, self.classes)
        return match_kind(torch.from_numpy(drawn_labels), labels)

    def answer_without_noise(self, logits: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
        """Return the row that tells the top class; see `KnownLaw.answer_without_noise`."""
        return self._mark(self._find_tops(logits))

    def log_density(
        self, answers: Float[Tensor, "Q C"], rows: Float[Tensor, "M C"]
    ) -> Float[Tensor, "Q M"]:
        """Return epsilon where answer and row tell the same class, else 0."""
        return torch.eq(answers.argmax(1)[:, None], rows.argmax(1)).double() * self.epsilon

    def _find_tops(self, logits: Float[Tensor, "B C"]) -> Int[np.ndarray, " B"]:
        """Return the top class of each row."""
        check_logits(logits, self.classes)
        if logits.dtype == torch.bfloat16:  # which NumPy does not have
            logits = logits.float()
        rows: np.ndarray = logits.numpy(force=True)
        tops: Int[np.ndarray, " B"] = rows.argmax(1)  # small groups: torch takes twice as long
        return tops

    def _mark(self, labels: Int[np.ndarray, " B"]) -> Float[Tensor, "B C"]:
        """Return rows of epsilon at each label, in double precision."""
        marked = np.zeros((len(labels), self.classes))
        marked[np.arange(len(labels)), labels] = self.epsilon
        return torch.from_numpy(marked)


def draw_labels(tops: Int[np.ndarray, " B"], epsilon: float, classes: int) -> Int[np.ndarray, " B"]:
    """Return each label with its chance, rounded down to 2^-62, else any other one.

    Uniform whole numbers of the system's secure generator decide; the time taken tells nothing.
    """
    truth = truth_chance(epsilon, classes)
    is_true = draw_below(CHANCE_STEPS, len(tops)) < math.floor(Fraction(truth) * CHANCE_STEPS)
    others = draw_below(classes - 1, len(tops))
    others += others >= tops  # counted without the top class
    return np.where(is_true, tops, others)


@cache
def truth_chance(epsilon: float, classes: int) -> float:
    """Return the chance p of telling the top class, rounded down until OpenDP confirms epsilon."""
    p = 1 / (1 + (classes - 1) * math.exp(-epsilon))
    make = import_opendp("measurements").make_randomized_response
    while True:
        p = math.nextafter(p, 0)
        if make([*range(classes)], prob=p).map(1) <= epsilon:
            return p
