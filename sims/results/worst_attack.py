"""Which attack a defence is held to.

Cells are compared by attacks that all of them have met: one that met a stronger attack than others
would look worse than it is.
"""

from collections.abc import Iterable, Sequence

from fedcel.attacks import AttackId
from sims.results.records import BenchRow, CellAttack

AttackKey = tuple[AttackId, int | None]
"""An attack as it was carried out, and its revision."""


def find_worst_attack(attacks: Iterable[CellAttack]) -> CellAttack | None:
    """Return the attack on one inference that rebuilt images best: the one with the lowest MSE.

    Attacks on uploads see training, and those on repeated answers see more than one inference
    shows: neither counts here. The first of equals wins. Only attacks on the most targets compete:
    the first ten images may be easier than all.

    Args:
        attacks: On one cell or run, each mean over its attack seeds.

    Returns:
        One of them, None when no attack on one inference rebuilt an image.
    """
    competing = [a for a in attacks if a.mse is not None and a.id.on_one_inference]
    most = max((attack.targets or 0 for attack in competing), default=0)
    competing = [attack for attack in competing if attack.targets in (None, most)]
    return min(competing, key=lambda attack: attack.mse or 0.0, default=None)


def comparable_attacks(row: BenchRow) -> dict[AttackKey, CellAttack]:
    """Return a cell's attacks on one inference that chose among as many images as it asked for.

    Another choice has another rate, which would stand beside others' as if it were theirs.
    """
    return {
        (attack.id, attack.revision): attack
        for attack in row.attacks
        if attack.id.on_one_inference and attack.mse is not None
        if None in (attack.identification_candidates, row.identification_candidates, attack.targets)
        or attack.identification_candidates
        == min(row.identification_candidates or 0, attack.targets or 0)
    }


def common_attacks(rows: Sequence[BenchRow]) -> set[AttackKey]:
    """Return the attacks that all cells have met, or else those that most cells have met."""
    reached: dict[AttackKey, set[int]] = {}
    for number, row in enumerate(rows):
        for key in comparable_attacks(row):
            reached.setdefault(key, set()).add(number)
    widest = max(reached.values(), key=len, default=set())
    return {key for key, cells in reached.items() if cells == widest}


def hold_to_common(rows: Sequence[BenchRow]) -> list[BenchRow]:
    """Hold each cell to the worst of the attacks that all cells have met: so they are compared.

    Args:
        rows: Of a bench, in any order.

    Returns:
        The rows with their `worst` attack set: None where a cell met none of `common_attacks`.
    """
    common = common_attacks(rows)
    compared = []
    for row in rows:
        attacks = comparable_attacks(row)
        worst = find_worst_attack(attack for key, attack in attacks.items() if key in common)
        compared.append(row.model_copy(update={"worst": worst}))
    return compared


def hold_to_own(rows: Sequence[BenchRow]) -> list[BenchRow]:
    """Hold each cell to the worst of the attacks that all seeds of its point have met.

    Args:
        rows: Of a bench, in any order.

    Returns:
        The rows in the same order with their `worst` attack set, where there is one.
    """
    points: dict[tuple[str, float | None], list[int]] = {}
    for number, row in enumerate(rows):
        points.setdefault(row.point, []).append(number)
    compared = list(rows)
    for numbers in points.values():
        group = hold_to_common([rows[number] for number in numbers])
        for number, row in zip(numbers, group, strict=True):
            compared[number] = row
    return compared
