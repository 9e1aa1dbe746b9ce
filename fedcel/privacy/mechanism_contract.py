"""The short form of the contract of mechanisms, held before a run begins."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.errors import ContractError
from fedcel.plugins import require
from fedcel.privacy.protocol import Mechanism
from fedcel.seeding import make_twice


class MechanismCase(NamedTuple):
    """A mechanism to hold to its contract.

    Attributes:
        build: Makes the mechanism.
        classes: Logits of an answer.
    """

    build: Callable[[], Mechanism]
    classes: int

    def answer(self, logits: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
        """Return the answers to logits, after a look at their shape and values."""
        before = logits.clone()
        answer = self.build().answer(logits)
        line = "`answer` must return one finite row for each row of logits"
        require(isinstance(answer, Tensor), f"{line}; it returned {type(answer).__name__}")
        shapes = f"of {tuple(logits.shape)} it made {tuple(answer.shape)}"
        require(answer.shape == logits.shape, f"{line}; {shapes}")
        require(bool(answer.isfinite().all()), f"{line}; values are not finite")
        require(torch.equal(logits, before), "`answer` must leave the logits as they are")
        return answer


def _check_description(case: MechanismCase) -> None:
    mechanism, again = case.build(), case.build()
    epsilon, delta = mechanism.epsilon, mechanism.delta
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        require(is_number, f"{name} must be a number, is {value!r:.60}")
    require(0 < epsilon < math.inf, f"epsilon must be above 0 and finite, is {epsilon}")
    require(0 <= delta < 1, f"delta must be in [0, 1), is {delta}")
    is_same = (epsilon, delta) == (again.epsilon, again.delta)
    require(is_same, "epsilon and delta must be the same each time it is made")
    line = "unit must be 'logits' or 'probabilities'"
    require(mechanism.unit in ("logits", "probabilities"), f"{line}, is {mechanism.unit!r:.60}")
    for name, text in (("name", mechanism.name), ("protects", mechanism.protects)):
        require(isinstance(text, str) and bool(text), f"{name} must say something, is {text!r:.60}")


def _check_answers(case: MechanismCase) -> None:
    for rows in (1, 3, 0):
        logits = torch.linspace(-1, 1, max(rows * case.classes, 1))[: rows * case.classes]
        case.answer(logits.view(rows, case.classes))
        case.answer(1e30 * logits.view(rows, case.classes))


def _check_undefined_logits(case: MechanismCase) -> None:
    for bad in (math.nan, math.inf):
        logits = torch.zeros(2, case.classes)
        logits[1, 0] = bad
        try:
            case.build().answer(logits)
        except ValueError:
            continue
        require(False, f"logits with {bad} must be refused with a ValueError; they were answered")


def _check_noise(case: MechanismCase) -> None:
    try:
        make_twice(lambda: case.answer(torch.zeros(2, case.classes)))
    except ContractError:
        raise ContractError(
            "noise must come from the system's secure generator, never from torch's, whose seed "
            "would tell it"
        ) from None


MECHANISM_CHECKS: tuple[Callable[[MechanismCase], None], ...] = (
    _check_description,
    _check_answers,
    _check_undefined_logits,
    _check_noise,
)
"""Each raises ContractError where a line of the contract does not hold."""
