"""What larger budgets brought the worst attack of each variant."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sims.report.records import Escalated
from sims.report.table import Table, make_table
from sims.report.text import format_number

FALLS = 0.98
"""A larger budget that brings the MSE below this share of the smaller one's still helps."""
Which = tuple[str, float | None]
"""A variant and its strength."""


class Sweep(NamedTuple):
    """One attack on one cell: its MSE at each budget, the smallest first."""

    which: Which
    title: str
    attack: str
    errors: dict[float, float]

    @property
    def falling(self) -> bool:
        """Say whether the largest budget still helped."""
        before, last = list(self.errors.values())[-2:]
        return last < FALLS * before


def find_sweeps(rows: Iterable[Escalated]) -> list[Sweep]:
    """Return the cells that one attack rebuilt images of with several budgets, in their order.

    A cell that was trained again, to another accuracy, is another one.
    """
    groups: dict[tuple[object, ...], dict[float, Escalated]] = {}
    for row in rows:
        if row.attack is not None and row.mse is not None:
            model = row.variant, row.strength, row.seed, row.accuracy, row.bits_beyond_label
            how = row.attack, row.knowledge, row.targets, row.revision
            groups.setdefault((model, how), {})[row.budget] = row
    found = []
    for group in groups.values():
        errors = {budget: row.mse for budget, row in sorted(group.items()) if row.mse is not None}
        first = next(iter(group.values()))
        which, title = (first.variant, first.strength), first.title or first.variant
        found += [Sweep(which, title, str(first.attack), errors)] if len(errors) > 1 else []
    return found


def make_sweeps_table(found: Sequence[Sweep], labels: Mapping[Which, str] | None = None) -> Table:
    """Return the MSE at each budget and whether it was still falling; titles have no strength."""
    budgets = sorted({budget for sweep in found for budget in sweep.errors})
    head = ("variant", "attack", *(f"MSE, {budget:g}x" for budget in budgets), "still falling")
    rows = tuple(
        (
            (labels or {}).get(sweep.which, sweep.title),
            sweep.attack,
            *(format_number(sweep.errors.get(budget), 4) for budget in budgets),
            "yes" if sweep.falling else "no",
        )
        for sweep in found
    )
    return make_table("MSE by budget", head, rows, words=2)


def describe_sweeps(found: Sequence[Sweep]) -> str:
    """Say for how many the largest budget still helped."""
    count, past = sum(sweep.falling for sweep in found), f"{100 * (1 - FALLS):g} %"
    if not count:
        return (
            f"At the largest budget the MSE was no longer falling for any of {len(found)}: by less "
            f"than {past} from the budget before."
        )
    return (
        f"At the largest budget the MSE was still falling, by more than {past} from the budget "
        f"before, for {count} of {len(found)}: there a longer attack would rebuild better."
    )
