"""The rows of a bench, and the attack that each is held to.

Cells are compared by attacks that all of them have met: one that met a stronger attack than others
would look worse than it is.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path

import numpy as np
from jaxtyping import Float

from fedcel import per_image
from fedcel.attacks import AttackId
from fedcel.errors import RunError
from fedcel.files import lock_file, write_json
from sims.results.attack_results import (
    average_attacks,
    list_failures,
    read_attack_vectors,
    read_results,
)
from sims.results.records import BENCH_FILE, RESULT_FILE, BenchRow, CellAttack, read_records

BENCH_LOCK = f".{BENCH_FILE}.lock"
"""Held while bench.json is written: another call may finish other cells meanwhile."""
ImageVectors = dict[str, Float[np.ndarray, " T"]]
"""A value for each test image, by run and measure, or by run, attack and measure."""
BENCH_AGAIN = "run the same `fedcel bench` again, finished cells are kept"
AttackKey = tuple[AttackId, int | None]
"""An attack as it was carried out, and its revision."""


def read_bench_rows(folder: Path) -> list[BenchRow]:
    """Read the rows of a bench, one or more, each held to the worst attack that all have met.

    RunError where bench.json is missing, empty, or damaged.
    """
    path = folder / BENCH_FILE
    if not path.exists():
        what = "is a single run" if (folder / RESULT_FILE).exists() else f"has no {BENCH_FILE}"
        raise RunError(f"{folder} {what}; give a folder that `fedcel bench` wrote")
    rows = read_records(path, BenchRow, BENCH_AGAIN)
    if not rows:
        raise RunError(f"{path} has no rows; run `fedcel bench` first")
    return hold_to_common(rows)


def update_bench(folder: Path) -> list[BenchRow]:
    """Give each row of a bench the attacks that its run has met by now; return the rows."""
    with lock_file(folder / BENCH_LOCK):
        return write_bench_rows(folder, read_bench_rows(folder))


def write_bench_rows(folder: Path, rows: Iterable[BenchRow]) -> list[BenchRow]:
    """Write rows with all attacks on their runs, and their values image by image as far as kept.

    Attacks that rows name are replaced by those of the runs. The caller holds `BENCH_LOCK`.
    Returns the rows held to the worst attack that all cells have met, as the file has them.
    RunError where what attacks left on a run is damaged.
    """
    gathered, vectors = [], per_image.Vectors()
    for row in rows:
        place = folder / row.run
        results = read_results(place)
        failed = list_failures(attack for result in results for attack in result.rows)
        met = {"attacks": tuple(average_attacks(results)), "failed_attacks": tuple(failed)}
        gathered.append(row.model_copy(update=met))
        measured = per_image.read_vectors(place) | read_attack_vectors(place)
        vectors |= {f"{row.run}{per_image.APART}{name}": v for name, v in measured.items()}
    compared = hold_to_common(gathered)
    write_json(folder / BENCH_FILE, [row.to_json() for row in compared])
    if compared:
        per_image.write_vectors(folder, vectors)
    return compared


def read_image_vectors(folder: Path) -> ImageVectors:
    """Return the values of each test image that a bench kept; {} where it kept none."""
    return {name: value.double().numpy() for name, value in per_image.read_vectors(folder).items()}


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
