"""The published tables: their commands, their files of rows, and the data that they need."""

import tomllib
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from importlib.resources import files
from typing import Literal

from fedcel.errors import SettingsError
from fedcel.json_records import Record

BENCH = "BENCH"
"""In a command: the table's folder."""
RUN = "RUN"
"""In a command: each run of the table's bench, one after the other."""
SOURCE_FILE = files("sims.reproduce").joinpath("tables.toml")


class PublishedTable(Record):
    """A published table: the commands that make it, and how its rows come about."""

    name: str
    section: Literal["leakage", "attacks", "posteriors"]
    number: str
    """What it shows, in Markdown; links are of docs/research."""
    commands: tuple[str, ...]
    minutes: int | None = None
    """Of two quiet cores."""
    rows: tuple[str, ...]
    """Files in docs/results."""
    source: Literal["bench", "uncertainty", "membership", "attacks"] | None = None
    """What rows are read from; None: they are made by hand."""

    @property
    def data(self) -> list[str]:
        """Return the names of the data that its commands need, of those that must be given."""
        words = {part for line in self.commands for part in line.replace("=", " ").split()}
        return sorted(words & read_data().keys())


def read_data() -> dict[str, str]:
    """Return what the data are that the repository does not hold, by their names in commands.

    Returns:
        A sentence for each name.
    """
    return dict(tomllib.loads(SOURCE_FILE.read_text())["data"])


def read_tables() -> list[PublishedTable]:
    """Return all published tables in the order of the page.

    Returns:
        The tables.
    """
    raw = tomllib.loads(SOURCE_FILE.read_text())["table"]
    return [PublishedTable.model_validate(table) for table in raw]


def find_tables(names: Sequence[str]) -> list[PublishedTable]:
    """Return the tables of these names, or all that a command makes.

    Args:
        names: Of tables; none: all that are not made by hand.

    Returns:
        The tables.

    Raises:
        SettingsError: There is no such table, or it is made by hand.
    """
    tables = {table.name: table for table in read_tables()}
    if not names:
        return [table for table in tables.values() if table.source]
    for name in names:
        if name not in tables:
            nearest = get_close_matches(name, tables, 1, cutoff=0)[0]
            raise SettingsError(
                f"no table {name!r}; did you mean {nearest!r}? `fedcel reproduce --list` shows all"
            )
        if not tables[name].source:
            steps = "; ".join(tables[name].commands) or "docs/research/reproduce.md says how"
            raise SettingsError(f"table {name!r} is made by hand: {steps}")
    return [tables[name] for name in dict.fromkeys(names)]


def describe_tables(tables: Iterable[PublishedTable]) -> Iterator[tuple[str, ...]]:
    """Yield a line a table: name, minutes, data, rows, how its rows are made, commands.

    Args:
        tables: The tables.

    Yields:
        The cells of a line.
    """
    for table in tables:
        minutes = "-" if table.minutes is None else str(table.minutes)
        data = ", ".join(table.data) or "-"
        source = table.source or "by hand"
        yield (
            table.name,
            minutes,
            data,
            ", ".join(table.rows) or "-",
            source,
            "; ".join(table.commands),
        )


def format_command_table(section: str) -> Iterator[str]:
    """Yield the Markdown table of a section's commands.

    Args:
        section: Of the page.

    Yields:
        Its lines.
    """
    yield "| number | name | command | minutes | rows |\n|---|---|---|---|---|"
    for table in read_tables():
        if table.section == section:
            commands = ", then ".join(f"`{command}`" for command in table.commands)
            name = f"`{table.name}`" if table.source else "by hand"
            minutes = "" if table.minutes is None else table.minutes
            rows = ", ".join(f"`{file}`" for file in table.rows)
            yield f"| {table.number} | {name} | {commands} | {minutes} | {rows} |"


def describe_hours(tables: Iterable[PublishedTable]) -> str:
    """Return how long all tables take that a command makes, with and without further data.

    Args:
        tables: The tables.

    Returns:
        A sentence.
    """
    by_command = [table for table in tables if table.source]
    free = [table for table in by_command if not table.data]
    hours, free_hours = (
        round(sum(table.minutes or 0 for table in part) / 60, 1) for part in (by_command, free)
    )
    return (
        f"On two quiet cores {len(by_command)} tables take {hours:g} hours; the {len(free)} that "
        f"need no further data take {free_hours:g} hours."
    )
