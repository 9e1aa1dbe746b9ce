"""A mechanism: not one label but a set of them, which holds the right one more often."""

import math
import secrets
from dataclasses import dataclass

import torch
from torch import Tensor

from fedcel.settings import PrivacySettings

RANDOM = secrets.SystemRandom()
ROUNDING = 1e-12  # share by which the top class is told less often than allowed


@dataclass(frozen=True)
class SubsetSelection:
    """A random set of `size` classes; those with the top class are e^epsilon times as likely.

    Ye and Barg, IEEE Transactions on Information Theory 2018: for epsilon of 1 or so and many
    classes, counts over many answers are estimated best from sets of about C/(1 + e^epsilon). At
    size 1 it is randomised response. Who needs a single label is served better by that.
    """

    epsilon: float
    classes: int
    size: int
    name: str = "subset-selection"
    delta: float = 0.0
    unit: str = "logits"
    protects: str = "the input of one query, against whoever reads its answer; answers add up."

    def truth_chance(self) -> float:
        """Return the chance that the set holds the top class: d e^eps / (d e^eps + C - d)."""
        odds_against = (self.classes - self.size) / self.size * math.exp(-self.epsilon)
        return (1 - ROUNDING) / (1 + odds_against)

    def answer(self, logits: Tensor) -> Tensor:
        """Return rows of epsilon at the members and 0 elsewhere; one member by lot a bit more.

        Softmax of a row is about what the set says of the classes. ValueError on undefined logits.
        """
        if logits.shape[1] != self.classes or not logits.isfinite().all():
            raise ValueError(
                f"logits must be finite (B, {self.classes}), are {tuple(logits.shape)}"
            )
        answer = torch.zeros(logits.shape, dtype=torch.float64)
        for row, top in zip(answer, logits.argmax(1).tolist(), strict=True):
            wrong = [label for label in range(self.classes) if label != top]
            has_top = RANDOM.random() < self.truth_chance()
            members = RANDOM.sample(wrong, self.size - has_top) + [top] * has_top
            row[members] = self.epsilon
            row[RANDOM.choice(members)] *= 1 + 1e-6
        return answer


def build_subset_selection(privacy: PrivacySettings, classes: int) -> SubsetSelection:
    """Return the mechanism with the best size for its epsilon, from 1 to C - 1."""
    best = round(classes / (1 + math.exp(privacy.epsilon)))
    return SubsetSelection(privacy.epsilon, classes, min(max(best, 1), classes - 1))
