"""A label alone, by k-ary randomised response: Kairouz, Oh and Viswanath, JMLR 2016, section 3.

The top class is told with chance p = e^eps/(e^eps + C - 1), any other one with equal chances. No
epsilon-DP answer about balanced classes is right more often.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.privacy.clip import check_logits
from fedcel.privacy.epsilon_range import check_epsilon
from fedcel.privacy.noise_mechanisms import import_opendp
from fedcel.privacy.protocol import PROTECTS


@final
@dataclass(frozen=True)
class LabelOnly:
    """Pure epsilon-DP labels; no clip plays a part.

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

    def answer(self, logits: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
        """Return rows of epsilon at the drawn label and 0 elsewhere, in double precision.

        Softmax makes of such a row each class's chance given the label, for balanced classes.

        Args:
            logits: (B, C); each row is one answer.

        Returns:
            One row (B, C) an answer.

        Raises:
            ValueError: Logits are undefined, or of another number of classes.
        """
        check_logits(logits, self.classes)
        respond = make_response(self.epsilon, self.classes)
        labels = torch.tensor([respond(top) for top in logits.argmax(1).tolist()], dtype=torch.long)
        return self.epsilon * torch.nn.functional.one_hot(labels, self.classes).double()


@cache
def make_response(epsilon: float, classes: int) -> Any:
    """Return OpenDP's sampler; ValueError as `check_response`."""
    make = import_opendp().m.make_randomized_response
    return make(list(range(classes)), prob=truth_chance(epsilon, classes))


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
    if classes < 2:
        raise ValueError(f"there are {classes} classes, must be 2 or more")
