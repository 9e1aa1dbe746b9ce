"""The one model of a table: cells as text, formatted once.

The page draws it as HTML (`grid` in page.html.jinja), documents have it as Markdown, a terminal as
columns.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Table(NamedTuple):
    """A header and rows of equal length; `words` columns are text and read from the left."""

    name: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1


def make_table(
    name: str, head: Iterable[str], rows: Iterable[Iterable[str]], words: int = 1
) -> Table:
    """Return a table; ValueError when a row has more or fewer cells than the header."""
    table = Table(name, tuple(head), tuple(tuple(row) for row in rows), words)
    for row in table.rows:
        if len(row) != len(table.head):
            raise ValueError(f"table {name!r}: {row} has {len(row)} cells, not {len(table.head)}")
    return table


def format_markdown(table: Table) -> str:
    """Return the table as Markdown; a bar within a cell would end it and is escaped."""
    rule = ["---"] * len(table.head)
    rows = [[cell.replace("|", "\\|") for cell in row] for row in (table.head, rule, *table.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def format_columns(table: Table) -> str:
    """Return lines of equally wide columns, those of words from the left."""
    widths = [max(map(len, column)) for column in zip(table.head, *table.rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.ljust(width) if number < table.words else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(table.head), rule, *map(line, table.rows)])
