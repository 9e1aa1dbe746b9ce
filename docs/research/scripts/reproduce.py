"""Make published tables again: run their commands, read their rows, compare them.

Commands that ended well are not run again, so the same call goes on where it stopped.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from compare_rows import Comparison, compare_rows
from fedcel.errors import FailedError, FedcelError, SettingsError
from fedcel.files import read_json, write_json
from published_tables import (
    BENCH,
    DATA,
    RUN,
    TABLES,
    PublishedTable,
    describe_hours,
    find_tables,
)
from sims.commands.main import main
from sims.commands.options import Jobs, check_folder
from sims.progress import print_line
from sims.results.attack_results import read_attack_rows
from sims.results.bench_rows import read_bench_rows

ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "docs" / "results"
DONE_FILE = "commands.json"
"""In a table's folder: the commands that ended well."""
COMPARISON_FILE = "comparison.json"
"""In a table's folder: for each file of rows, every number with the published one."""
ROWS_FOLDER = "rows"
"""In the output: the rows, named as in docs/results."""
INTERRUPTED = (130, -2)
Rows = list[dict[str, Any]]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE]...", help="Without a name: all that a command makes, data given."
        ),
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="Show the tables.")] = False,
    out: Annotated[
        Path, typer.Option(help="A folder for each table; a call goes on there.")
    ] = Path("runs/reproduce"),
    jobs: Jobs = 2,
    data: Annotated[
        list[str] | None, typer.Option(metavar="NAME=PATH", help=f"Place of {', '.join(DATA)}.")
    ] = None,
) -> None:
    """Make published tables again, and compare their rows with the published ones."""
    if show_list:
        for table in TABLES.values():
            source = f"from {table.source}" if table.source else "by hand"
            print(f"{table.name}: {table.minutes or '-'} min, rows {', '.join(table.rows) or '-'} "
                  f"({source})\n    {'; '.join(table.commands)}")  # fmt: skip
        print(describe_hours(TABLES.values()))
        return
    check_folder(out)
    tables, places = find_tables(names or []), parse_data(data or [])
    for table in [table for table in tables if set(table.data) - places.keys()]:
        if names:
            raise SettingsError(
                f"table {table.name!r} needs {', '.join(table.data)}; give its place by "
                f"--data {table.data[0]}=PATH"
            )
        print(f"left out, its data is not given: {table.name}")
        tables.remove(table)
    make_tables(tables, out, jobs=jobs, data=places)


def parse_data(assignments: Sequence[str]) -> dict[str, str]:
    """Read NAME=PATH; SettingsError where either does not exist."""
    places = dict(part.partition("=")[::2] for part in assignments)
    for name, path in places.items():
        if name not in DATA or not Path(path).exists():
            raise SettingsError(
                f"--data {name}={path}: must be the existing file or folder of one of "
                f"{', '.join(DATA)}"
            )
    return places


def make_tables(
    tables: Sequence[PublishedTable],
    out: Path,
    *,
    jobs: int,
    data: Mapping[str, str],
    published: Path = PUBLISHED,
) -> list[Comparison]:
    """Make tables again and compare their rows with the published ones.

    A table that fails does not stop the others.

    Args:
        tables: The tables, none made by hand.
        out: Each table has a folder in it.
        jobs: Trainings at once, where a command can have several.
        data: Paths by the names that commands have for data.
        published: The folder of the published rows.

    Returns:
        A comparison for each file of rows.

    Raises:
        FailedError: Tables failed, which it names.
    """
    unfinished = [table for table in tables if not (out / table.name / COMPARISON_FILE).exists()]
    print_line(
        f"tables: {len(tables)}, complete: {len(tables) - len(unfinished)}; about "
        f"{sum(table.minutes or 0 for table in unfinished)} minutes of two quiet cores are left"
    )
    comparisons: list[Comparison] = []
    failed: dict[str, str] = {}
    for table in tables:
        folder = out / table.name
        try:
            for command in fill_commands(table, folder, jobs=jobs, data=data):
                run_once(command, folder)
            rows = read_rows(table, folder)
            made = [
                compare_rows(file, cast(Rows, read_json(published / file)), rows)
                for file in table.rows
            ]
        except FedcelError as error:
            failed[table.name] = str(error)
            print_line(f"{table.name} failed: {error}")
            continue
        for comparison in made:
            write_json(out / ROWS_FOLDER / comparison.file, rows)
            print_line(str(comparison))
        write_json(folder / COMPARISON_FILE, [comparison.to_json() for comparison in made])
        comparisons += made
    total = sum(len(comparison.numbers) for comparison in comparisons)
    inside = sum(comparison.count("inside") for comparison in comparisons)
    others = [c.file for c in comparisons if c.count("inside") < len(c.numbers)]
    where = f"; others in {', '.join(others)}" if others else ""
    print_line(f"tables: {len(comparisons)}; of {total} numbers {inside} inside{where}")
    if failed:
        reasons = "; ".join(f"{name} ({reason})" for name, reason in failed.items())
        raise FailedError(
            f"{len(failed)} of {len(tables)} tables failed: {reasons}; the same call goes on, and "
            "begins anew where a table's folder was deleted"
        )
    return comparisons


def fill_commands(
    table: PublishedTable, folder: Path, *, jobs: int, data: Mapping[str, str]
) -> Iterator[list[str]]:
    """Yield the words of each of a table's commands; those for each run once its bench is there."""
    for line in table.commands:
        words = shlex.split(line)
        if "--jobs" in words:
            words[words.index("--jobs") + 1] = str(jobs)
        runs = [str(folder)]
        if RUN in words:
            runs = [str(folder / row.run) for row in read_bench_rows(folder)]
        for run in runs:
            places = {**data, BENCH: str(folder), RUN: run}
            parts = (word.rpartition("=") for word in words)
            yield [f"{key}{equals}{places.get(value, value)}" for key, equals, value in parts]


def run_once(command: Sequence[str], folder: Path) -> None:
    """Run a command unless it ended well here before; FailedError where it does not."""
    path, line = folder / DONE_FILE, shlex.join(command)
    done = cast(list[str], read_json(path)) if path.exists() else []
    if line in done:
        print_line(f"complete: {line}")
        return
    print_line(f"run: {line}")
    program, *words = command
    start = ["-P", "-m", "sims"] if program == "fedcel" else [str(ROOT / words.pop(0))]
    modules = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # where this process looks
    process = subprocess.run(
        [sys.executable, *start, *words], env={**os.environ, **modules}, check=False
    )
    if process.returncode in INTERRUPTED:
        raise KeyboardInterrupt
    if process.returncode:
        raise FailedError(f"`{line}` ended with status {process.returncode}, the reason is above")
    write_json(path, [*done, line])


def read_rows(table: PublishedTable, folder: Path) -> Rows:
    """Read the rows of a finished table, in the form of docs/results."""
    if table.source != "attacks":
        return cast(Rows, read_json(folder / f"{table.source}.json"))
    return [
        {
            str(row.strength_key).rpartition(".")[2]: row.strength,
            "training-seed": row.seed,
            **attack.to_json(),
        }
        for row in read_bench_rows(folder)
        for attack in read_attack_rows(folder / row.run)
    ]


if __name__ == "__main__":
    sys.exit(main(app=app, name="reproduce.py"))
