"""Numbers of one run that cannot all be right."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from fedcel.attacks import AttackRow, find_contradictions
from fedcel.settings import Settings
from sims.report.book import FinishedRun
from sims.report.verdict import find_alarms
from sims.results.records import RunResult
from tests.sims.report.made import cell

BEST = AttackRow(
    attack="optimal", observation="smashed", candidates=400, identification_optimal=0.5,
    identification_half_width=0.02, identification_candidates=100, information_bits=6.0,
)  # fmt: skip
TRAINED = AttackRow(
    attack="decoder", observation="smashed", knowledge="held-out", budget=1.0, targets=400,
    identification_1=0.4,
)  # fmt: skip
BETTER = TRAINED.model_copy(update={"identification_1": 0.9})


def test_numbers_that_agree_raise_none() -> None:
    """And rows that say too little, or of another observation, are not compared."""
    assert find_contradictions([BEST, TRAINED]) == []
    assert find_contradictions([BETTER]) == []
    old = BEST.model_copy(update={"identification_half_width": None})
    assert find_contradictions([old, BETTER]) == []
    assert find_contradictions([BEST, BETTER.model_copy(update={"targets": None})]) == []
    assert find_contradictions([BEST, BETTER.model_copy(update={"observation": "logits"})]) == []


def test_a_trained_attack_above_the_optimal_one() -> None:
    """In whatever order they were made."""
    (said,) = find_contradictions([BETTER, BEST])
    assert said.startswith("On smashed decoder picks the right image in 0.900 of cases")


@pytest.mark.parametrize("change", [{"budget": 4.0}, {"knowledge": "training-size"}])
def test_a_weak_attack_hides_no_impossible_one(change: dict[str, object]) -> None:
    """The mean of .9 and .1 is .5, as much as the optimal one has."""
    weak = TRAINED.model_copy(update={"identification_1": 0.1, **change})
    (said,) = find_contradictions([BEST, weak, BETTER])
    assert "0.900" in said


def test_the_optimal_attacker_above_its_information() -> None:
    """Half a bit cannot name one of 100 in half of all cases; said once, whoever else attacked."""
    (said,) = find_contradictions([BEST.model_copy(update={"information_bits": 0.5}), TRAINED])
    assert "Fano" in said


def test_all_of_ninety_is_not_all() -> None:
    """Right in each of 90 cases, with 6.4878 of 6.4919 bits: 96.7 % to 100 %, Fano allows 99.98."""
    sure = {"identification_optimal": 1.0, "identification_half_width": 0.0, "candidates": 90}
    sure |= {"identification_candidates": 90, "information_bits": 6.4878}
    assert find_contradictions([BEST.model_copy(update=sure)]) == []
    (said,) = find_contradictions([BEST.model_copy(update=sure | {"information_bits": 5.0})])
    assert "Fano" in said


def test_the_run_is_named(outcome: Callable[..., RunResult]) -> None:
    """By its variant and training seed."""
    runs = [
        FinishedRun("r", Settings(), (), outcome(), rows, {}) for rows in ((BEST,), (BEST, BETTER))
    ]
    (said,) = find_alarms([replace(cell("a", 0.9, [2.0, 2.0]), runs=tuple(runs))])
    assert said.startswith("a, training seed 1: On smashed")


def test_bits_above_their_certificate(outcome: Callable[..., RunResult]) -> None:
    """A result of before half widths were kept raises none: it may be chance."""
    over = {"information_bits": 5.0, "certificate_bits": 4.0}
    (said,) = find_contradictions([], outcome(**over, information_half_width=0.1))
    assert "its certificate allows 4.000" in said
    assert find_contradictions([], outcome(**over)) == []
