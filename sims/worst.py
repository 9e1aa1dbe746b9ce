"""Which attack a defence is held to."""

import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from fedcel import per_image

Row = Mapping[str, object]

REBUILT = ("mse", "psnr", "ssim", "identification-1", "oracle-mse", "mean-mse")
"""What a row of bench.json says of its worst attack."""
TRAINING = "update"
"""Observation of an upload: what training shows, not an inference."""
REPEATS = "*"
"""In the name of an attack that sees several answers to one image, and of what it sees."""


class Who(NamedTuple):
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


def who(row: Row) -> Who:
    """Return what a row of attacks.json says of its attack; KeyError when it names none."""
    budget, targets = row.get("budget"), row.get("targets")
    return Who(
        str(row["attack"]),
        str(row.get("observation", "")),
        str(row.get("knowledge", "")),
        None if budget is None else float(str(budget)),
        None if targets is None else int(str(targets)),
    )


def worst_attack(scores: Iterable[tuple[Who, float]]) -> Who | None:
    """Return the attack on one inference that rebuilt images best: the lowest MSE, mean over seeds.

    Attacks on uploads see training, and those on repeated answers see more than one inference
    shows: neither counts here. `scores` are pairs of an attack and the MSE of one of its runs, on
    pixels in [0, 1]. None when no attack on one inference was run. The first of equals wins.
    """
    found: dict[Who, list[float]] = {}
    for attack, mse in scores:
        if attack.on_one_inference:
            found.setdefault(attack, []).append(mse)
    return min(found, key=lambda attack: statistics.fmean(found[attack]), default=None)


def worst_rows(rows: Iterable[Row]) -> tuple[str | None, list[Row]]:
    """Return the name of the attack that `worst_attack` finds in attacks.json, and its rows."""
    trained = [row for row in rows if "mse" in row]
    worst = worst_attack((who(row), float(str(row["mse"]))) for row in trained)
    return worst and worst.attack, [row for row in trained if who(row) == worst]


def of_worst(folder: Path, rows: Iterable[Row]) -> per_image.Vectors:
    """Return the worst attack's scores of each target, mean over its seeds; {} if not all are kept.

    `rows` are of the attacks.json in `folder`.
    """
    known, counted = per_image.read(folder), worst_rows(rows)[1]
    found = per_image.Vectors()
    for key in ("mse", "identification-1"):
        each = [known.get(per_image.name(row, key)) for row in counted]
        there = [vector for vector in each if vector is not None]
        if there and len(there) == len(each):
            found[key] = torch.stack(there).mean(0)
    return found


def merged(rows: Iterable[Row], more: Iterable[Row]) -> list[dict[str, object]]:
    """Return rows of bench.json, with the scores of those of escalated.json where these are worse.

    Worse for the defence: a lower MSE, whatever the attack and its budget.
    """
    lowest: dict[tuple[object, ...], Row] = {}
    for row in more:
        if row.get("mse") is not None and error(row) < error(lowest.get(cell(row), {})):
            lowest[cell(row)] = row
    found = []
    for row in rows:
        other = lowest.get(cell(row), {})
        worse = {"worst-attack": other.get("attack"), **{key: other.get(key) for key in REBUILT}}
        found.append({**row, **worse} if error(other) < error(row) else dict(row))
    return found


def cell(row: Row) -> tuple[object, ...]:
    """Return what tells a bench's cells apart."""
    return row["variant"], row.get("strength"), row.get("seed", 0)


def error(row: Row) -> float:
    """Return a row's MSE, infinity where it has none."""
    value = row.get("mse")
    return torch.inf if value is None else float(str(value))
