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
from fedcel.privacy.noise_mechanisms import import_opendp
from fedcel.privacy.protocol import PROTECTS

SMALLEST = 1e-9  # below, p and 1/C are too few doubles apart


@final
@dataclass(frozen=True)
class LabelOnly:
    """Pure epsilon-DP labels of `classes`; the clip plays no part."""

    epsilon: float
    classes: int
    name: str = "label-only"
    delta: float = 0.0
    protects: str = PROTECTS
    unit: Literal["logits", "probabilities"] = "logits"

    def answer(self, logits: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
        """Return rows of epsilon at the drawn label and 0 elsewhere, in double precision.

        Softmax makes of such a row each class's chance given the label, for balanced classes.
        """
        check_logits(logits, self.classes)
        respond = make_response(self.epsilon, self.classes)
        told = torch.tensor([respond(top) for top in logits.argmax(1).tolist()], dtype=torch.long)
        return self.epsilon * torch.nn.functional.one_hot(told, self.classes).double()


@cache
def make_response(epsilon: float, classes: int) -> Any:
    """Return OpenDP's sampler; ValueError as `truth_chance`."""
    make = import_opendp().m.make_randomized_response
    return make(list(range(classes)), prob=truth_chance(epsilon, classes))


def truth_chance(epsilon: float, classes: int) -> float:
    """Return the chance p of telling the top class, rounded down until OpenDP confirms epsilon.

    ValueError unless epsilon is finite and at least 1e-9, and there are two classes or more.
    """
    if not SMALLEST <= epsilon < math.inf:
        raise ValueError(f"epsilon is {epsilon}, must be finite and {SMALLEST} or more; try 4")
    if classes < 2:
        raise ValueError(f"there are {classes} classes, must be 2 or more")
    p = 1 / (1 + (classes - 1) * math.exp(-epsilon))
    make = import_opendp().m.make_randomized_response
    while True:
        p = math.nextafter(p, 0)
        if make([*range(classes)], prob=p).map(1) <= epsilon:
            return p
