"""Contract of mechanisms of private answers."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.errors import ContractError
from fedcel.plugins import require
from fedcel.privacy.empirical_bounds import measure_epsilon
from fedcel.privacy.protocol import Mechanism
from fedcel.torch_state import make_twice

ANSWERS = 10_000  # drawn about each of two inputs
CONFIDENCE = 1 - 1e-6  # at 95 % a valid mechanism would be called invalid once in some forty runs


class MechanismCase(NamedTuple):
    """A mechanism to hold to its contract.

    Attributes:
        build: Makes the mechanism.
        classes: Logits of an answer.
    """

    build: Callable[[], Mechanism]
    classes: int

    def answer(self, logits: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
        """Return the answers to logits, after checking their shape and values."""
        before = logits.clone()
        answer = self.build().answer(logits)
        line = "`answer` must return one finite row for each row of logits"
        require(isinstance(answer, Tensor), f"{line}; it returned {type(answer).__name__}")
        shapes = f"of {tuple(logits.shape)} it made {tuple(answer.shape)}"
        require(answer.shape == logits.shape, f"{line}; {shapes}")
        require(bool(answer.isfinite().all()), f"{line}; values are not finite")
        require(torch.equal(logits, before), "`answer` must leave the logits as they are")
        return answer


def extreme_pairs(classes: int = 3) -> Float[Tensor, "pairs 2 C"]:
    """Return pairs of logits that clips leave as far apart as they may be."""
    first, second = 1e3 * torch.eye(classes, dtype=torch.float64)[:2]
    return torch.stack([torch.stack([first, -first]), torch.stack([first, second])])


def _check_description(case: MechanismCase) -> None:
    mechanism, again = case.build(), case.build()
    lacks = "it must have name, epsilon, delta, protects, unit and answer"
    require(isinstance(mechanism, Mechanism), f"{lacks}; {type(mechanism).__name__} lacks some")
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
        _require_refusal(case, logits, f"logits with {bad}")


def _require_refusal(case: MechanismCase, logits: Float[Tensor, "B C"], words: str) -> None:
    try:
        case.build().answer(logits)
    except ValueError:
        return
    require(False, f"{words} must be refused with a ValueError; they were answered")


def _check_noise(case: MechanismCase) -> None:
    try:
        make_twice(lambda: case.answer(torch.zeros(2, case.classes)))
    except ContractError:
        raise ContractError(
            "noise must come from the system's secure generator, never from torch's, whose seed "
            "would tell it"
        ) from None


def _check_sentence(case: MechanismCase) -> None:
    protects = case.build().protects
    line = "protects must be a sentence, which pages and the service's answers show"
    require(protects.endswith("."), f"{line}; {protects!r:.60} has no full stop")


def _check_classes(case: MechanismCase) -> None:
    for classes in (case.classes - 1, case.classes + 1):
        words = f"logits of {classes} classes, not {case.classes}, on which the cost may depend,"
        _require_refusal(case, torch.zeros(2, classes), words)


def _check_randomness(case: MechanismCase) -> None:
    first, second = (case.answer(torch.zeros(500, case.classes)) for _ in range(2))
    require(not torch.equal(first, second), "500 answers must differ the second time; none did")


def _check_epsilon(case: MechanismCase) -> None:
    for pair in extreme_pairs(case.classes):
        mechanism = case.build()
        measured = measure_epsilon(mechanism, pair, ANSWERS, CONFIDENCE)
        line = f"answers must cost no more than epsilon {mechanism.epsilon:g}"
        require(measured <= mechanism.epsilon, f"{line}; the best threshold tells {measured:g}")


MechanismCheck = Callable[[MechanismCase], None]
MECHANISM_CHECKS: tuple[MechanismCheck, ...] = (
    _check_description,
    _check_answers,
    _check_undefined_logits,
    _check_noise,
)
"""Before a run and in tests; each raises ContractError where a line of the contract breaks."""
MECHANISM_TESTS: tuple[MechanismCheck, ...] = (
    *MECHANISM_CHECKS,
    _check_sentence,
    _check_classes,
    _check_randomness,
    _check_epsilon,
)
"""All, in tests of 3 classes and an epsilon of about 1."""
