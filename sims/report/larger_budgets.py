"""Attacks that were run with several budgets."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fedcel.attacks import AttackId
from sims.report.table import Table, format_number, make_table
from sims.results.columns import MSE
from sims.results.records import BenchRow
from sims.results.worst_attack import comparable_attacks

FALLING = 0.98
"""A larger budget that brings the MSE below this share of the smaller one's still helps."""
Point = tuple[str, float | None]
"""A variant and its strength."""


class Sweep(NamedTuple):
    """One attack on one cell: its MSE at each budget, the smallest first."""

    point: Point
    title: str
    attack: str
    errors: dict[float, float]

    @property
    def falling(self) -> bool:
        """Whether the largest budget still helped."""
        before, last = list(self.errors.values())[-2:]
        return last < FALLING * before


def find_sweeps(rows: Iterable[BenchRow]) -> list[Sweep]:
    """Return the errors of each attack with several budgets on each cell."""
    sweeps = []
    for row in rows:
        groups: dict[tuple[AttackId, int | None], dict[float, float]] = {}
        for (attack, revision), scores in comparable_attacks(row).items():
            if attack.budget is not None and scores.mse is not None:
                group = groups.setdefault((attack._replace(budget=None), revision), {})
                group[attack.budget] = scores.mse
        sweeps += [
            Sweep(row.point, row.name, attack.attack, dict(sorted(errors.items())))
            for (attack, _), errors in groups.items()
            if len(errors) > 1
        ]
    return sweeps


def make_sweeps_table(sweeps: Sequence[Sweep], labels: Mapping[Point, str]) -> Table:
    """Return the MSE at each budget and whether it was still falling."""
    budgets = sorted({budget for sweep in sweeps for budget in sweep.errors})
    head = ("variant", "attack", *(f"MSE, {budget:g}x" for budget in budgets), "still falling")
    rows = [
        (
            labels.get(sweep.point, sweep.title),
            sweep.attack,
            *(format_number(sweep.errors.get(budget), MSE.digits) for budget in budgets),
            "yes" if sweep.falling else "no",
        )
        for sweep in sweeps
    ]
    return make_table("MSE by budget", head, rows, words=2)


def describe_sweeps(sweeps: Sequence[Sweep]) -> str:
    """Return for how many attacks the largest budget still helped."""
    count = sum(sweep.falling for sweep in sweeps)
    return (
        f"At the largest budget the MSE was still falling, by more than {100 * (1 - FALLING):g} % "
        f"from the budget before, for {count} of {len(sweeps)}"
        + (": there a longer attack would rebuild better." if count else ".")
    )
