"""The attack a defence is held to."""

from collections.abc import Sequence
from itertools import permutations

import pytest

from fedcel.attacks import AttackId, AttackRow
from sims.results.attack_results import average_attacks, group_by_attack
from sims.results.records import BenchRow, CellAttack
from sims.results.worst_attack import (
    common_attacks,
    find_worst_attack,
    hold_to_common,
    hold_to_common_per_point,
)
from tests.sims.results.made import attack, make_row

A = attack("a", 0.2)


def test_the_lowest_error_counts_and_the_first_of_equals() -> None:
    """Each is the mean over its attack seeds already."""
    better = attack("b", 0.1)
    assert find_worst_attack([A, better]) == better
    assert find_worst_attack([A, attack("b", 0.2)]) == A
    assert find_worst_attack([attack("b", 0.2), A]) == attack("b", 0.2)
    assert find_worst_attack([A, attack("b", None)]) == A


@pytest.mark.parametrize(
    "better",
    [
        attack("gradient-inversion", 0.0, observation="update"),
        attack("a*16", 0.0, observation="smashed-data*16"),
        attack("optimal", 0.0, observation="x*4"),
    ],
)
def test_an_attack_on_more_than_one_inference_does_not_count(better: CellAttack) -> None:
    """However exact the images of an upload, or of sixteen answers to one question."""
    assert find_worst_attack([better, A]) == A
    assert find_worst_attack([better]) is None


def test_few_targets_do_not_win_by_being_easy() -> None:
    """An attack on ten images is no worse than one on 400, whatever its error."""
    few = attack("b", 0.1, targets=10)
    assert find_worst_attack([A, few]) == A
    assert find_worst_attack([few]) == few


def test_no_trained_attack() -> None:
    """Nobody rebuilt an image."""
    assert find_worst_attack([]) is None


def worst_of(rows: Sequence[BenchRow]) -> list[object]:
    return [row.worst and (row.worst.attack, row.worst.mse) for row in rows]


DECODER = attack("decoder", 0.05)


def test_each_seed_has_its_own_worst_attack() -> None:
    """Winners differ from seed to seed; an attack that one seed did not meet does not count."""
    errors = ((0.02, 0.06), (0.04, 0.03), (0.06, 0.06))
    rows = [
        make_row("v", 1.0, DECODER, attack("hybrid", one), attack("kernel", two), seed=seed)
        for seed, (one, two) in enumerate(errors)
    ]
    assert worst_of(hold_to_common_per_point(rows)) == [
        ("hybrid", 0.02),
        ("kernel", 0.03),
        ("decoder", 0.05),
    ]
    assert worst_of(hold_to_common(rows)) == worst_of(hold_to_common_per_point(rows))
    lacking = make_row("v", 1.0, DECODER, seed=3)
    assert worst_of(hold_to_common_per_point([*rows, lacking])) == [("decoder", 0.05)] * 4
    other = make_row("v", 1.0, DECODER, attack("hybrid", 0.01, budget=4.0), seed=3)
    assert (
        worst_of(hold_to_common_per_point([*rows, other])) == [("decoder", 0.05)] * 4
    )  # nor with one budget


def test_errors_on_other_targets_are_not_compared() -> None:
    """Ten targets never take the place of 400; 400 do that of ten, even where they are harder."""
    few = attack("hybrid", 0.01, targets=10)
    assert worst_of(hold_to_common_per_point([make_row("v", 1.0, DECODER, few)])) == [
        ("decoder", 0.05)
    ]
    many = attack("kernel", 0.06)
    assert worst_of(hold_to_common_per_point([make_row("v", 1.0, few, many)])) == [("kernel", 0.06)]


def test_a_choice_among_five_is_none_among_a_hundred() -> None:
    """Its rate would stand beside others' as if it were theirs; ten targets are ten at most."""
    hundred = {"identification-candidates": 100}
    few = attack("hybrid", 0.02, **{"identification-candidates": 5})
    assert worst_of(hold_to_common_per_point([make_row("v", 1.0, DECODER, few, **hundred)])) == [
        ("decoder", 0.05)
    ]
    many = attack("hybrid", 0.02, **hundred)
    assert worst_of(hold_to_common_per_point([make_row("v", 1.0, DECODER, many, **hundred)])) == [
        ("hybrid", 0.02)
    ]
    ten = attack("hybrid", 0.02, targets=10, **{"identification-candidates": 10})
    assert worst_of(hold_to_common_per_point([make_row("v", 1.0, ten, **hundred)])) == [
        ("hybrid", 0.02)
    ]


def test_a_curve_is_of_what_all_its_cells_met() -> None:
    """A stronger attack at one strength alone would make that variant look worse than others."""
    hybrid = attack("hybrid", 0.02)
    first = make_row("v", 1.0, DECODER, hybrid)
    for other in ({"budget": 4.0}, {"revision": 2}, {"mse": None}, {"knowledge": "other"}):
        second = make_row("v", 2.0, DECODER, hybrid.model_copy(update=other))
        assert worst_of(hold_to_common([first, second])) == [("decoder", 0.05)] * 2
        assert worst_of(hold_to_common_per_point([first, second]))[0] == ("hybrid", 0.02)
    assert common_attacks([first]) == {(DECODER.id, None), (hybrid.id, None)}


def test_one_cell_that_lacks_an_attack_does_not_mix_them() -> None:
    """The attack that met most cells alone is compared; where it is missing there is no error."""
    ridge, hybrid = attack("ridge", 0.05), attack("hybrid", 0.02)
    rows = [
        make_row("v", 1.0, ridge, hybrid),
        make_row("v", 2.0, ridge),
        make_row("v", 3.0, ridge),
        make_row("v", 4.0, attack("other", 0.01)),
    ]
    assert worst_of(hold_to_common(rows)) == [("ridge", 0.05)] * 3 + [None]
    assert worst_of(hold_to_common([make_row("v", 1.0)])) == [None]


def test_the_order_of_rows_decides_nothing() -> None:
    """Of two equally large groups of cells that of the runs first by name is compared."""
    ridge, hybrid = attack("ridge", 0.05), attack("hybrid", 0.02)
    rows = [
        make_row("a", 1.0, hybrid),
        make_row("b", 1.0, hybrid, ridge),
        make_row("c", 1.0, ridge),
    ]
    assert worst_of(hold_to_common(rows)) == [("hybrid", 0.02), ("hybrid", 0.02), None]
    for order in permutations(rows):
        worst = {row.variant: row.worst for row in hold_to_common(order)}
        assert worst == {"a": hybrid, "b": hybrid, "c": None}


def test_rows_of_other_budgets_are_other_attacks() -> None:
    """They are not averaged with each other; seeds are, and what was skipped counts nowhere."""
    first = AttackRow(attack="a", budget=1.0, seed=0, mse=0.1)
    seeds = [first, first.model_copy(update={"seed": 1, "mse": 0.3})]
    more = first.model_copy(update={"budget": 4.0})
    groups = group_by_attack([*seeds, more, AttackRow(attack="b", skipped="no")])
    assert groups == {AttackId("a", budget=1.0): seeds, AttackId("a", budget=4.0): [more]}
    assert average_attacks([]) == []
