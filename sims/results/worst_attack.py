"""The attack that a defence is held to.

Cells are compared by attacks that all of them have met: one that met a stronger attack than others
would look worse than it is.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter

from fedcel.attacks import AttackId
from sims.results.records import BenchRow, CellAttack

AttackKey = tuple[AttackId, int | None]
"""An attack as it was carried out, and its revision."""


def find_worst_attack(attacks: Iterable[CellAttack]) -> CellAttack | None:
    """Find the attack on one inference that rebuilt images best: the one with the lowest MSE.

    Attacks on uploads see training, and those on repeated answers see more than one inference
    shows: neither counts here. The first of equals wins. Only attacks on the most targets compete:
    the first ten images may be easier than all. None where no attack rebuilt an image.
    """
    scored = [a for a in attacks if a.mse is not None and a.id.on_one_inference]
    most_targets = max((attack.targets or 0 for attack in scored), default=0)
    competing = (attack for attack in scored if attack.targets in (None, most_targets))
    return min(competing, key=lambda attack: attack.mse or 0.0, default=None)


def comparable_attacks(row: BenchRow) -> dict[AttackKey, CellAttack]:
    """Return a cell's attacks on one inference that chose among as many images as it asked for.

    Another choice has another rate, which would stand beside others' as if it were theirs.
    """
    return {
        (attack.id, attack.revision): attack
        for attack in row.attacks
        if attack.id.on_one_inference and attack.mse is not None and is_full_choice(attack, row)
    }


def is_full_choice(attack: CellAttack, row: BenchRow) -> bool:
    """Whether an attack chose among the cell's candidates, or all its targets if fewer."""
    choices = attack.identification_candidates
    candidates = row.identification_candidates
    if choices is None or candidates is None or attack.targets is None:
        return True  # older benches do not say it
    return choices == min(candidates, attack.targets)


def common_attacks(rows: Sequence[BenchRow]) -> set[AttackKey]:
    """Return the attacks that all cells have met; if there are none, those of the largest group.

    A group is the cells that met an attack. Of equally large ones that counts whose runs come
    first by name, whatever the order of the rows. The cells outside it have none of its attacks.
    """
    cells_by_attack: dict[AttackKey, set[int]] = {}
    for number, row in enumerate(sorted(rows, key=attrgetter("run"))):
        for key in comparable_attacks(row):
            cells_by_attack.setdefault(key, set()).add(number)
    groups = cells_by_attack.values()
    largest = min(groups, key=lambda cells: (-len(cells), sorted(cells)), default=set())
    return {key for key, cells in cells_by_attack.items() if cells == largest}


def hold_to_common(rows: Sequence[BenchRow]) -> list[BenchRow]:
    """Hold each cell to the worst of the attacks that all cells have met, for their comparison.

    `worst` is None where a cell met none of `common_attacks`: the comparison leaves it out.
    """
    common = common_attacks(rows)
    compared = []
    for row in rows:
        attacks = comparable_attacks(row)
        worst = find_worst_attack(attack for key, attack in attacks.items() if key in common)
        compared.append(row.model_copy(update={"worst": worst}))
    return compared


def hold_to_common_per_point(rows: Sequence[BenchRow]) -> list[BenchRow]:
    """Hold each cell to the worst of the attacks that all seeds of its point have met."""
    points: dict[tuple[str, float | None], list[BenchRow]] = {}
    for row in rows:
        points.setdefault(row.point, []).append(row)
    groups = {point: iter(hold_to_common(group)) for point, group in points.items()}
    return [next(groups[row.point]) for row in rows]
