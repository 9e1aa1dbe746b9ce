"""A user's mechanism that breaks its contract is refused before it answers."""

import math
import secrets
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedcel.errors import ContractError, PluginError
from fedcel.privacy import MECHANISM_TESTS, LabelOnly, LabelOnlyAnswers, MechanismCase, OwnAnswers
from fedcel.settings import PrivacySettings


class Sound:
    """Answers with noise of the system's generator; what it costs is not the subject here."""

    name, unit, delta, protects = "sound", "logits", 0.0, "the input of one query."

    def __init__(self, privacy: PrivacySettings, classes: int) -> None:
        self.epsilon, self.classes = privacy.epsilon, classes

    def answer(self, logits: Tensor) -> Tensor:
        if logits.shape[1] != self.classes or not logits.isfinite().all():
            raise ValueError("logits must be finite")
        rows = [[secrets.randbelow(9) for _ in row] for row in logits]
        return torch.tensor(rows, dtype=torch.float64).view(len(logits), self.classes)


def change(
    answer: Callable[..., Tensor] = lambda own, logits: own(logits), **attributes: Any
) -> type[Sound]:
    """Return the mechanism with one fault: `answer` has its own answer and the logits."""

    class Changed(Sound):
        def __init__(self, privacy: PrivacySettings, classes: int) -> None:
            super().__init__(privacy, classes)
            vars(self).update(attributes)

        def answer(self, logits: Tensor) -> Tensor:
            return answer(super().answer, logits)

    return Changed


narrow = change(lambda own, logits: own(logits)[:, :1])
trusting = change(lambda own, logits: own(logits.nan_to_num(posinf=0.0)))
seeded = change(lambda own, logits: own(logits) + torch.rand(logits.shape))
writing = change(lambda own, logits: own(logits.clone()) + 0 * logits.zero_())
worded, free, odd = change(epsilon="four"), change(epsilon=0.0), change(unit="stars")
wordless = change(protects="the input of one query")
unsized = change(lambda own, logits: torch.zeros(len(logits), logits.shape[1]))
certain = change(lambda own, logits: logits.clone())

BROKEN = {
    "narrow": r"one finite row for each row of logits; of \(1, 3\) it made \(1, 1\)",
    "trusting": "must be refused with a ValueError; they were answered",
    "seeded": "noise must come from the system's secure generator",
    "worded": "epsilon must be a number, is 'four'",
    "free": "epsilon must be above 0 and finite, is 0.0",
    "odd": "unit must be 'logits' or 'probabilities', is 'stars'",
    "writing": "must leave the logits as they are",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_mechanism_that_breaks_its_contract_is_refused(name: str) -> None:
    """By setting, import string and the line of the contract."""
    privacy = OwnAnswers(mechanism=f"{__name__}:{name}")
    words = f"privacy.mechanism '{__name__}:{name}' breaks its contract: .*{BROKEN[name]}"
    with pytest.raises(PluginError, match=words):
        privacy.build(3)


def test_a_sound_one_is_let_through() -> None:
    """And is the user's own object."""
    mechanism = OwnAnswers(mechanism=f"{__name__}:Sound").build(3)
    assert isinstance(mechanism, Sound)
    assert math.isclose(mechanism.epsilon, LabelOnlyAnswers().epsilon)


TESTED = {
    "sentence": (wordless, "'the input of one query' has no full stop"),
    "classes": (unsized, "logits of 2 classes, not 3, .* must be refused with a ValueError"),
    "randomness": (certain, "must differ the second time"),
    "epsilon": (certain, "no more than epsilon 1; the best threshold tells"),
}


@pytest.mark.parametrize("name", TESTED)
def test_a_line_of_tests_alone_is_broken(name: str) -> None:
    """By a mechanism with one fault; the label-only mechanism keeps it."""
    (check,) = (c for c in MECHANISM_TESTS if c.__name__ == f"_check_{name}")
    kind, words = TESTED[name]
    check(MechanismCase(lambda: LabelOnly(1.0, 3), 3))
    with pytest.raises(ContractError, match=words):
        check(MechanismCase(lambda: kind(LabelOnlyAnswers(epsilon=1.0), 3), 3))
