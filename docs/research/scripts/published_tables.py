"""Published tables: their commands, their files of rows, and the data that they need."""

import tomllib
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from fedcel.errors import SettingsError
from fedcel.json_records import Record

BENCH = "BENCH"
"""In a command: the table's folder."""
RUN = "RUN"
"""In a command: each run of the table's bench, one after the other."""
SOURCE = tomllib.loads(Path(__file__).with_name("tables.toml").read_text())
DATA: dict[str, str] = SOURCE["data"]
"""Descriptions of the data sets that the repository does not hold, by their names in commands."""


class PublishedTable(Record):
    """A published table: the commands that make it, and the source of its rows."""

    name: str
    section: Literal["leakage", "attacks", "posteriors"]
    number: str
    """The table's content in Markdown; links are of docs/research."""
    commands: tuple[str, ...]
    minutes: int | None = None
    """Of two quiet cores."""
    rows: tuple[str, ...]
    """Files in docs/results."""
    source: Literal["bench", "uncertainty", "membership", "leakage-measures", "attacks"] | None = (
        None
    )
    """Source of the rows; None: they are made by hand."""

    @property
    def data(self) -> list[str]:
        """Return the names of the data sets that its commands need."""
        words = {part for line in self.commands for part in line.replace("=", " ").split()}
        return sorted(words & DATA.keys())


TABLES = {raw["name"]: PublishedTable.model_validate(raw) for raw in SOURCE["table"]}
"""All published tables by name, in the order of the page."""


def find_tables(names: Sequence[str]) -> list[PublishedTable]:
    """Return the tables of these names; without names all that a command makes.

    Raises:
        SettingsError: There is no such table, or it is made by hand.
    """
    for name in names:
        if name not in TABLES:
            nearest = get_close_matches(name, TABLES, 1, cutoff=0)[0]
            raise SettingsError(f"no table {name!r}; did you mean {nearest!r}? --list shows all")
        if not TABLES[name].source:
            raise SettingsError(
                f"table {name!r} is made by hand: {'; '.join(TABLES[name].commands)}"
            )
    return [TABLES[name] for name in dict.fromkeys(names)] or [
        table for table in TABLES.values() if table.source
    ]


def format_command_table(section: str) -> Iterator[str]:
    """Yield the lines of the Markdown table of a section's commands."""
    yield "| number | name | command | minutes | rows |\n|---|---|---|---|---|"
    for table in TABLES.values():
        if table.section == section:
            commands = ", then ".join(f"`{command}`" for command in table.commands)
            name = f"`{table.name}`" if table.source else "by hand"
            minutes = "" if table.minutes is None else table.minutes
            rows = ", ".join(f"`{file}`" for file in table.rows)
            yield f"| {table.number} | {name} | {commands} | {minutes} | {rows} |"


def describe_hours(tables: Iterable[PublishedTable]) -> str:
    """Return the time of all tables that a command makes, with and without further data."""
    by_command = [table for table in tables if table.source]
    free = [table for table in by_command if not table.data]
    hours, free_hours = (
        round(sum(table.minutes or 0 for table in part) / 60, 1) for part in (by_command, free)
    )
    return (
        f"On two quiet cores {len(by_command)} tables take {hours:g} hours; the {len(free)} that "
        f"need no further data take {free_hours:g} hours."
    )
