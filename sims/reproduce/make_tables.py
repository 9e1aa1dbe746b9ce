"""Run the commands of tables, go on where they stopped, read their rows and compare them."""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedcel.errors import FailedError, FedcelError, RunError, SettingsError
from fedcel.files import write_json
from sims.progress import print_line
from sims.reproduce.compare_rows import Comparison, compare_rows
from sims.reproduce.published_tables import BENCH, RUN, PublishedTable
from sims.results import (
    BENCH_FILE,
    MEMBERSHIP_FILE,
    UNCERTAINTY_FILE,
    read_attack_rows,
    read_bench_rows,
)
from sims.search_path import copy_environment

DONE_FILE = "commands.json"
"""In a table's folder: the commands that ended well."""
ROWS_FOLDER = "rows"
"""In the output: the rows, called as in docs/results."""
COMPARISON_FILE = "comparison.json"
"""In a table's folder: for each file of rows, every number beside the published one."""
ROW_FILES = {
    "bench": BENCH_FILE,
    "uncertainty": UNCERTAINTY_FILE,
    "membership": MEMBERSHIP_FILE,
}
INTERRUPTED = (130, -2)


def make_tables(
    tables: Sequence[PublishedTable],
    out: Path,
    *,
    jobs: int = 2,
    data: Mapping[str, str] | None = None,
    extra: Sequence[str] = (),
    published: Path,
) -> list[Comparison]:
    """Make tables again and compare their rows with the published ones.

    A table that fails does not stop the others.

    Args:
        tables: The tables, none made by hand.
        out: Each table has a folder in it; commands that ended well there are not run again.
        jobs: Trainings at once, where a command can have several.
        data: Paths by the names that commands have for data.
        extra: Assignments of settings that every training command gets besides.
        published: The folder of the published rows.

    Returns:
        A comparison for each file of rows.

    Raises:
        FailedError: Tables failed, which it names; the same call goes on.
        SettingsError: A table's data is not given.
    """
    _print_estimate(tables, out, jobs=jobs, data=data or {}, extra=extra)
    comparisons: list[Comparison] = []
    failed: dict[str, str] = {}
    for table in tables:
        try:
            comparisons += _make_table(
                table, out, jobs=jobs, data=data or {}, extra=extra, published=published
            )
        except FedcelError as error:
            failed[table.name] = str(error)
            print_line(f"{table.name} failed: {error}")
    print_line(summarise_comparisons(comparisons))
    if failed:
        reasons = "; ".join(f"{name} ({reason})" for name, reason in failed.items())
        raise FailedError(f"{len(failed)} of {len(tables)} tables failed: {reasons}")
    return comparisons


def _make_table(
    table: PublishedTable,
    out: Path,
    *,
    jobs: int,
    data: Mapping[str, str],
    extra: Sequence[str],
    published: Path,
) -> list[Comparison]:
    """Make one table and return a comparison for each of its files of rows."""
    folder = out / table.name
    for command in fill_commands(table, folder, jobs=jobs, data=data, extra=extra):
        _run_once(command, folder)
    rows = read_rows(table, folder)
    comparisons = []
    for file in table.rows:
        write_json(out / ROWS_FOLDER / file, rows)
        comparison = compare_rows(file, _read_row_file(published / file), rows)
        print_line(str(comparison))
        comparisons.append(comparison)
    write_json(folder / COMPARISON_FILE, [comparison.to_json() for comparison in comparisons])
    return comparisons


def summarise_comparisons(comparisons: Sequence[Comparison]) -> str:
    """Return how many numbers of all tables are inside, and which tables have others.

    Args:
        comparisons: One for each file of rows.

    Returns:
        A line.
    """
    total = sum(len(comparison.numbers) for comparison in comparisons)
    inside = sum(comparison.count("inside") for comparison in comparisons)
    others = [c.file for c in comparisons if c.count("inside") < len(c.numbers)]
    where = f"; others in {', '.join(others)}" if others else ""
    return f"tables: {len(comparisons)}; of {total} numbers {inside} inside{where}"


def fill_commands(
    table: PublishedTable,
    folder: Path,
    *,
    jobs: int,
    data: Mapping[str, str],
    extra: Sequence[str] = (),
) -> Iterator[list[str]]:
    """Yield the words of each of a table's commands; those for each run once its bench is there.

    Args:
        table: The table.
        folder: Where it is made.
        jobs: Takes the place of the number after `--jobs`.
        data: Paths by the names that commands have for data.
        extra: Assignments of settings that training commands get besides.

    Yields:
        Words, the first of them `fedcel`.

    Raises:
        SettingsError: Its data is not given.
    """
    for name in table.data:
        if name not in data:
            raise SettingsError(
                f"table {table.name!r} needs {name}, which is not given; add --set "
                f"{name.lower()}.path=PATH, or --set data.path=PATH for this table alone"
            )
    for line in table.commands:
        words = shlex.split(line)
        if "--jobs" in words:
            words[words.index("--jobs") + 1] = str(jobs)
        if words[1] in ("bench", "uncertainty", "membership"):
            words += [part for item in extra for part in ("--set", item)]
        runs = [str(folder)]
        if RUN in words:
            runs = [str(folder / row.run) for row in read_bench_rows(folder)]
        for run in runs:
            places = {**data, BENCH: str(folder), RUN: run}
            yield [_fill_word(word, places) for word in words]


def _fill_word(word: str, places: Mapping[str, str]) -> str:
    """Return a word with the name that it is, or ends with after `=`, replaced."""
    key, equals, value = word.rpartition("=")
    return f"{key}{equals}{places.get(value, value)}"


def read_rows(table: PublishedTable, folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a finished table, in the form of docs/results.

    Args:
        table: The table.
        folder: Where its commands wrote.

    Returns:
        The rows.

    Raises:
        RunError: The file that they are read from is missing or damaged.
    """
    if table.source != "attacks":
        return _read_row_file(folder / ROW_FILES[str(table.source)])
    return [
        {
            str(row.strength_key).rpartition(".")[2]: row.strength,
            "training-seed": row.seed,
            **attack.to_json(),
        }
        for row in read_bench_rows(folder)
        for attack in read_attack_rows(folder / row.run)
    ]


def _read_row_file(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file; RunError where it is missing or damaged."""
    try:
        rows: list[dict[str, Any]] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RunError(
            f"{path} is no file of rows ({error}); delete the folder {path.parent} to make the "
            "table again, or restore the file where it is a published one"
        ) from None
    return rows


def _run_once(command: Sequence[str], folder: Path) -> None:
    """Run a command unless it ended well here before; FailedError where it does not."""
    done = _read_done(folder)
    line = shlex.join(command)
    if line in done:
        print_line(f"complete: {line}")
        return
    print_line(f"run: {line}")
    words = [sys.executable, "-P", "-m", "sims", *command[1:]]
    status = subprocess.run(words, env=copy_environment(), check=False).returncode
    if status in INTERRUPTED:
        raise KeyboardInterrupt
    if status:
        raise FailedError(f"`{line}` ended with status {status}, the reason is above")
    write_json(folder / DONE_FILE, [*done, line])


def _read_done(folder: Path) -> list[str]:
    """Return the commands that ended well in a table's folder."""
    path = folder / DONE_FILE
    try:
        return [str(line) for line in json.loads(path.read_text())] if path.exists() else []
    except ValueError as error:
        raise RunError(
            f"{path} is no list of commands ({error}); delete it, and the table is made again"
        ) from None


def _print_estimate(
    tables: Sequence[PublishedTable],
    out: Path,
    *,
    jobs: int,
    data: Mapping[str, str],
    extra: Sequence[str],
) -> None:
    """Print how long unfinished tables take; refuse what cannot be made before the work."""
    unfinished = []
    for table in tables:
        folder = out / table.name
        lines = table.commands
        if not (folder / BENCH_FILE).exists():  # its runs are not known yet
            lines = tuple(line for line in lines if RUN not in line.split())
        listed = table.model_copy(update={"commands": lines})
        needed = [*fill_commands(listed, folder, jobs=jobs, data=data, extra=extra)]
        if {*map(shlex.join, needed)} - {*_read_done(folder)}:
            unfinished.append(table)
    minutes = sum(table.minutes or 0 for table in unfinished)
    print_line(
        f"tables: {len(tables)}, complete: {len(tables) - len(unfinished)}; about {minutes} "
        "minutes of two quiet cores are left"
    )
