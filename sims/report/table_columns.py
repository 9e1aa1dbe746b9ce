"""Columns of measures."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sims.report.text import format_interval
from sims.results.intervals import crossed_interval


class Column(NamedTuple):
    """A measure as the table shows it: its heading, decimals, and what it is multiplied with."""

    key: str
    head: str
    digits: int
    scale: float = 1.0


def select_numbers(rows: Iterable[Mapping[str, object]], key: str) -> list[float]:
    """Return a key's numbers, where rows have one."""
    return [float(str(row[key])) for row in rows if row.get(key) is not None]


def format_spread(
    column: Column, values: Iterable[float | None], images: Iterable[float | None] = ()
) -> str:
    """Return mean and interval of a column's values, see `crossed_interval`."""
    return format_interval(crossed_interval(values, images), column.digits, column.scale)
