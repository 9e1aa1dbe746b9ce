"""Which attack a defence is held to."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from fedcel.errors import RunError

Row = Mapping[str, object]

REBUILT = ("mse", "psnr", "ssim", "identification-1", "oracle-mse", "mean-mse")
"""What a row of bench.json says of its worst attack."""
ANCHORS = ("oracle-mse", "mean-mse")
"""Of these, errors of who knows the label alone, or nothing, with the same images of his own."""
NAMED = ("attack", "knowledge", "budget", "targets")
"""What a row says of the attack that its scores are of; in bench.json behind `worst-`."""
OF_ATTACKS = ("mse", "identification-1")
"""What is kept of each target."""
FAILED_ATTACKS = "failed-attacks"
"""In a row: attacks that failed there where nobody foresaw it. The worst is that of the others."""
TRAINING = "update"
"""Observation of an upload: what training shows, not an inference."""
REPEATS = "*"
"""In the name of an attack that sees several answers to one image, and of what it sees."""


class AttackId(NamedTuple):
    """One attack as it was carried out; its runs differ in nothing but the attack seed."""

    attack: str
    observation: str = ""
    knowledge: str = ""
    budget: float | None = None
    targets: int | None = None

    @property
    def on_one_inference(self) -> bool:
        """Say whether it sees what one inference shows: no upload, no repeated answers."""
        return self.observation != TRAINING and REPEATS not in self.attack + self.observation


def attack_id(row: Row) -> AttackId:
    """Return what an attack's row says of its attack; KeyError when it names none."""
    budget, targets = row.get("budget"), row.get("targets")
    return AttackId(
        str(row["attack"]),
        str(row.get("observation", "")),
        str(row.get("knowledge", "")),
        None if budget is None else float(str(budget)),
        None if targets is None else int(str(targets)),
    )


def worst_attack(scores: Iterable[tuple[AttackId, float]]) -> AttackId | None:
    """Return the attack on one inference that rebuilt images best: the lowest MSE, mean over seeds.

    Attacks on uploads see training, and those on repeated answers see more than one inference
    shows: neither counts here. `scores` are pairs of an attack and the MSE of one of its runs, on
    pixels in [0, 1]. None when no attack on one inference was run. The first of equals wins. Only
    attacks on the most targets compete: the first ten images may be easier than all.
    """
    found: dict[AttackId, list[float]] = {}
    for attack, mse in scores:
        if attack.on_one_inference:
            found.setdefault(attack, []).append(mse)
    most = max((attack.targets or 0 for attack in found), default=0)
    found = {attack: each for attack, each in found.items() if attack.targets in (None, most)}
    return min(found, key=lambda attack: statistics.fmean(found[attack]), default=None)


def worst_rows(rows: Iterable[Row]) -> tuple[str | None, list[Row]]:
    """Return the name of the attack that `worst_attack` finds in rows of attacks, and its rows."""
    trained = [row for row in rows if "mse" in row]
    worst = worst_attack((attack_id(row), float(str(row["mse"]))) for row in trained)
    return worst and worst.attack, [row for row in trained if attack_id(row) == worst]


def is_mean(value: object, vector: Float[np.ndarray, " T"]) -> bool:
    """Say whether a row's number is what its images have on average."""
    known = value is not None
    return known and math.isclose(float(vector.mean()), float(str(value)), rel_tol=1e-4)


def merge_rows(rows: Sequence[Row], more: Iterable[Row]) -> list[dict[str, object]]:
    """Return rows of bench.json, with the scores of those of escalated.json where these are worse.

    Worse for the defence: a lower MSE, on as many targets or more. What counts was given to all
    seeds of a variant at a strength alike (all but the attack's name), on the models that
    bench.json is of; of that each seed has its own worst attack. RunError when a row's numbers are
    none.
    """
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(row_point(row), []).append(row)
    tried: dict[tuple[object, ...], dict[tuple[object, ...], list[Row]]] = {}
    for row in more:
        how = tuple(row.get(key) for key in ("knowledge", "budget", "targets", "revision"))
        tried.setdefault(row_point(row), {}).setdefault(how, []).append(row)
    worse: dict[int, Row] = {}
    for name, group in groups.items():
        offers = [best_offers(group, found) for found in tried.get(name, {}).values()]
        worse |= choose_worst(group, [offer for offer in offers if offer])
    return [
        {**row, **taken_scores(worse[id(row)])} if id(row) in worse else dict(row) for row in rows
    ]


class Even(NamedTuple):
    """Rows of bench.json, and those of escalated.json that they are compared with."""

    rows: Sequence[Row]
    more: Sequence[Row]


def common_attacks(rows: Sequence[Row], more: Sequence[Row]) -> Even:
    """Return what to merge so that all rows are of attacks that all met, on their models and seeds.

    Variants between two strengths are compared by these: one whose other strength met a weaker
    attack would look better than it is. Where neither attacks of escalated.json nor the cells' own
    met all, those that met most cells are left; the other cells have no errors then.
    """
    cells = {(row_point(row), row.get("seed", 0)): row for row in rows}
    reached: dict[tuple[object, ...], set[object]] = {}
    for row in more:
        cell = row_point(row), row.get("seed", 0)
        if cell in cells and row.get("mse") is not None and is_same_model(row, cells[cell]):
            reached.setdefault(attack_effort(row), set()).add(cell)
    common = [row for row in more if reached.get(attack_effort(row), set()) >= cells.keys()]
    own = sum(row.get("mse") is not None for row in rows)
    if common or own == len(rows):
        return Even(rows, common)
    most = max(reached, key=lambda one: len(reached[one]), default=None)
    if most is None or own >= len(reached[most]):
        return Even(rows, [])
    scores = (key for key in REBUILT if key not in ANCHORS)
    blank = {**dict.fromkeys(scores), **{f"worst-{key}": None for key in NAMED}}
    return Even(
        [{**row, **blank} for row in rows], [row for row in more if attack_effort(row) == most]
    )


def attack_effort(row: Row) -> tuple[object, ...]:
    """Return with what a row of escalated.json was attacked; old ones name no revision."""
    return tuple(row.get(key) for key in (*NAMED, "revision"))


def best_offers(group: Sequence[Row], found: Sequence[Row]) -> list[Row] | None:
    """Return the row with the lowest error for each of a group's; None unless there is one each."""
    each = [
        min((new for new in found if is_same_model(new, row)), key=row_error, default=None)
        for row in group
    ]
    there = [new for new in each if new is not None]
    return there if len(there) == len(each) else None


def choose_worst(group: Sequence[Row], offers: Sequence[Sequence[Row]]) -> dict[int, Row]:
    """Return by a row's id the offer that takes the place of its own attack, where one does."""
    sizes = [row.get("targets") for offer in offers for row in offer]
    sizes += [row.get("worst-targets") for row in group]
    most = max((size for size in sizes if isinstance(size, int)), default=0)
    found: dict[int, Row] = {}
    for row, *theirs in zip(group, *offers, strict=True):
        counts = row.get("worst-targets") in (None, most)
        lowest = row_error(row) if counts else math.inf
        for new in theirs:
            if new.get("targets") in (None, most) and row_error(new) < lowest:
                found[id(row)], lowest = new, row_error(new)
    return found


def taken_scores(row: Row) -> dict[str, object]:
    """Return what a row of bench.json takes from one of escalated.json."""
    named = {f"worst-{key}": row.get(key) for key in NAMED}
    return {**named, **{key: row.get(key) for key in REBUILT}}


def row_point(row: Row) -> tuple[str, float | None]:
    """Return a row's variant and strength."""
    value = row.get("strength")
    return str(row.get("variant")), None if value is None else row_number(row, "strength")


def is_same_model(new: Row, row: Row) -> bool:
    """Say whether two rows are of one model, and one choice among as many images.

    A run that was trained again has other scores.
    """
    keys = "accuracy", "bits-beyond-label"
    whose = new.get("seed", 0) == row.get("seed", 0)
    among, targets = new.get("picked-among"), new.get("targets")
    asked = row.get("identification-candidates")
    if isinstance(asked, int) and isinstance(among, int) and isinstance(targets, int):
        whose = whose and among == min(asked, targets)
    return whose and all(new.get(key) in (None, row.get(key)) for key in keys)


def row_error(row: Row) -> float:
    """Return a row's MSE, infinity where it has none."""
    return math.inf if row.get("mse") is None else row_number(row, "mse")


def row_number(row: Row, key: str) -> float:
    """Return a number of a row; RunError when it is none."""
    value = row[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        said = f"{key} of {row.get('variant')!r} is {value!r}, must be a number"
        raise RunError(f"bench.json or escalated.json: {said}; make it again")
    return float(value)
