"""The attack a defence is held to."""

from pathlib import Path

import pytest
import torch

from fedcel.attacks import Attacked, AttackRow
from fedcel.runs import per_image
from fedcel.settings import AttackSettings
from sims.results.attack_results import write_result
from sims.results.rows import worst_image_scores
from sims.results.worst_attack import (
    AttackId,
    attack_id,
    common_attacks,
    merge_rows,
    worst_attack,
)

A, B = AttackId("a", "smashed-data"), AttackId("b", "private-logits")


def test_the_lowest_mean_over_seeds_and_not_the_luckiest_seed() -> None:
    """Of two attacks, b has the best seed and a the best mean; the first of equals wins."""
    assert worst_attack([(B, 0.1), (A, 0.2), (B, 0.5), (A, 0.2)]) == A
    assert worst_attack([(B, 0.2), (A, 0.2)]) == B


def test_other_budgets_are_other_attacks() -> None:
    """Their runs are not averaged with each other."""
    more = A._replace(budget=4.0)
    assert worst_attack([(A, 0.2), (more, 0.1), (B, 0.18)]) == more


@pytest.mark.parametrize(
    "better",
    [
        AttackId("gradient-inversion", "update"),
        AttackId("a*16", "smashed-data*16"),
        AttackId("optimal", "x*4"),
    ],
)
def test_an_attack_on_more_than_one_inference_does_not_count(better: AttackId) -> None:
    """However exact the images of an upload, or of sixteen answers to one question."""
    assert worst_attack([(better, 0.0), (A, 0.2)]) == A
    assert worst_attack([(better, 0.0)]) is None


def test_few_targets_do_not_win_by_being_easy() -> None:
    """An attack on ten images is no worse than one on 400, whatever its error."""
    many, few = A._replace(targets=400), B._replace(targets=10)
    assert worst_attack([(many, 0.2), (few, 0.1)]) == many
    assert worst_attack([(few, 0.1)]) == few


def cells(**more: object) -> list[dict[str, object]]:
    """Return three seeds of a bench whose decoder has an error of .05 on 400 targets."""
    row: dict[str, object] = {"variant": "v", "strength": 1.0, "mse": 0.05, "worst-targets": 400}
    return [row | {"seed": seed, "worst-attack": "decoder"} | more for seed in range(3)]


def tried(seed: int, attack: str, mse: float, **more: object) -> dict[str, object]:
    """Return a row of escalated.json."""
    row: dict[str, object] = {"variant": "v", "strength": 1.0, "seed": seed, "attack": attack}
    return row | {"mse": mse, "knowledge": "held-out", "budget": 1.0, "targets": 400} | more


def taken_by(rows: list[dict[str, object]], more: list[dict[str, object]]) -> list[object]:
    """Return each seed's attack and error once merged."""
    return [(row["worst-attack"], row["mse"]) for row in merge_rows(rows, more)]


def test_each_seed_has_its_own_worst_attack() -> None:
    """Winners differ from seed to seed; one seed keeps what it had."""
    more = [tried(0, "hybrid", 0.02), tried(1, "kernel", 0.03), tried(2, "hybrid", 0.06)]
    wanted = [("hybrid", 0.02), ("kernel", 0.03), ("decoder", 0.05)]
    assert taken_by(cells(), more) == wanted
    own = [("decoder", 0.05)] * 3
    assert taken_by(cells(), more[:2]) == own  # not all seeds were attacked so
    again = [*more[:2], tried(2, "hybrid", 0.02, budget=4.0)]
    assert taken_by(cells(), again) == own  # nor with one budget
    assert taken_by(cells(), [row | {"accuracy": 0.1} for row in more]) == own  # another model


def test_errors_on_other_targets_are_not_compared() -> None:
    """Ten targets never take the place of 400; 400 do that of ten, even where they are harder."""
    few = [tried(seed, "hybrid", 0.01, targets=10) for seed in range(3)]
    assert taken_by(cells(), few) == [("decoder", 0.05)] * 3
    many = [tried(seed, "kernel", 0.06) for seed in range(3)]
    assert taken_by(cells(**{"worst-targets": 10}), many) == [("kernel", 0.06)] * 3


def test_a_choice_among_five_is_none_among_a_hundred() -> None:
    """Its rate would stand beside others' as if it were theirs."""
    rows = cells(**{"identification-candidates": 100})
    more = [tried(seed, "hybrid", 0.02, **{"picked-among": 5}) for seed in range(3)]
    assert taken_by(rows, more) == [("decoder", 0.05)] * 3
    more = [row | {"picked-among": 100} for row in more]
    assert taken_by(rows, more) == [("hybrid", 0.02)] * 3


def test_a_curve_is_of_what_all_its_cells_met() -> None:
    """A stronger attack at one strength alone would make that variant look worse than others."""
    rows = [row | {"strength": s} for s in (1.0, 2.0) for row in cells()]
    here = [tried(seed, "hybrid", 0.02) for seed in range(3)]
    there = [row | {"strength": 2.0} for row in here]
    assert common_attacks(rows, here) == (rows, [])
    assert common_attacks(rows, [*here, *there]) == (rows, [*here, *there])
    for other in ({"budget": 4.0}, {"revision": 2}, {"mse": None}):
        assert common_attacks(rows, [*here, *(row | other for row in there)]).more == []
    bare = [{key: value for key, value in row.items() if key != "mse"} for row in rows]
    assert common_attacks(bare, here).more == here  # cells that nothing else was run on
    failed = [row | {"attack": None, "mse": None} for row in (*here, *there)]
    assert common_attacks(bare, [*failed, *here]).more == here  # what failed there compares nothing


def test_one_cell_that_lacks_an_attack_does_not_mix_them() -> None:
    """The attack that met most cells alone is compared; where it is missing there is no error."""
    rows = [row | {"strength": s} for s in (1.0, 2.0) for row in cells()]
    bare = [{key: value for key, value in row.items() if key != "mse"} for row in rows]
    ridge = [tried(seed, "ridge", 0.05) | {"strength": s} for s in (1.0, 2.0) for seed in range(3)]
    best = [tried(seed, "hybrid", 0.02) | {"strength": 1.0} for seed in range(3)]
    assert common_attacks(bare, [*best, *ridge[:-1]]).more == ridge[:-1]
    found = merge_rows(*common_attacks(bare, [*best, *ridge[:-1]]))
    assert [row.get("mse") for row in found] == [0.05] * 3 + [None] * 3
    partly = [*rows[:3], *bare[3:]]  # half of the cells have been attacked by the bench itself
    assert common_attacks(partly, best) == (partly, [])
    found = merge_rows(*common_attacks(partly, ridge[:-1]))
    assert [row.get("worst-attack") for row in found] == ["ridge"] * 3 + [None] * 3


def test_no_trained_attack() -> None:
    """Nobody rebuilt an image."""
    assert worst_attack([]) is None


def test_what_a_row_says_of_its_attack() -> None:
    """The seed is left out; what a row does not say is not known."""
    row: dict[str, object] = {"attack": "a", "observation": "o", "knowledge": "k", "seed": 3}
    assert attack_id(row | {"budget": 2, "targets": 400}) == AttackId("a", "o", "k", 2.0, 400)
    assert attack_id({"attack": "a"}) == AttackId("a")


def test_images_are_of_the_attack_named_and_of_no_other_number_of_targets(tmp_path: Path) -> None:
    """Ten targets were attacked before four: the mean of four is that of its own four."""
    row: dict[str, object] = {
        "attack": "decoder",
        "observation": "smashed-data",
        "knowledge": "held-out",
    }
    many, few = (row | {"budget": 1.0, "targets": count, "seed": 0} for count in (10, 4))
    for each, error in ((many, 0.2), (few, 0.1)):
        vectors = {
            per_image.vector_name(each, "mse"): torch.full((int(str(each["targets"])),), error)
        }
        how = AttackSettings(names="decoder", targets=int(str(each["targets"])))
        write_result(tmp_path, how, Attacked([AttackRow.from_dict(each)], {}, vectors))
    told = {f"worst-{key}": few[key] for key in ("attack", "knowledge", "budget", "targets")}
    found = worst_image_scores(tmp_path, {**told, "mse": 0.1})
    assert found["mse"].tolist() == pytest.approx([0.1] * 4)
    assert (
        worst_image_scores(tmp_path, {**told, "mse": 0.3}) == {}
    )  # of another run: not these images
