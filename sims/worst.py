"""Which attack a defence is held to."""

import statistics
from collections.abc import Iterable, Mapping
from typing import NamedTuple

Row = Mapping[str, object]

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
