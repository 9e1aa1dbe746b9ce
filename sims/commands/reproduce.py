"""The command `reproduce`: make published tables again."""

from pathlib import Path
from typing import Annotated

import typer

from fedcel.errors import SettingsError
from fedcel.extras import require_extra
from sims.commands.interruption import RepeatHint, explain_interruption
from sims.commands.options import Assignments, Jobs, check_folder

EXAMPLES = (
    "fedcel reproduce --list",
    "fedcel reproduce temperature update-privacy --jobs 2",
)
PATH_KEY = ".path"


def reproduce_command(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE]...",
            help="Published tables; without a name all that a command makes.",
            show_default=False,
        ),
    ] = None,
    show_list: Annotated[
        bool, typer.Option("--list", help="Show the tables: minutes, data, rows, commands.")
    ] = False,
    out: Annotated[
        Path, typer.Option(help="A folder for each table; a call goes on there.")
    ] = Path("runs/reproduce"),
    jobs: Jobs = 2,
    assignments: Assignments = None,
    published: Annotated[Path, typer.Option(help="Folder of the published rows.")] = Path(
        "docs/results"
    ),
) -> None:
    """Make published tables again, and compare their rows with the published ones.

    `--set data.path=PATH` gives the images of the tables named, `fashion.path`, `faces.path` and
    `cifar.path` those of one data set. Any other setting goes to the trainings.
    """
    require_extra("simulation")
    from sims import reproduce

    if show_list:
        tables = reproduce.read_tables()
        for name, minutes, needs, rows, source, commands in reproduce.describe_tables(tables):
            print(f"{name}: {minutes} min, data {needs}, rows {rows} ({source})\n    {commands}")
        print(reproduce.describe_hours(tables))
        return
    check_folder(out)
    tables = reproduce.find_tables(names or [])
    data, extra = split_assignments(assignments or [], sorted({n for t in tables for n in t.data}))
    if not names:
        lacking = [table.name for table in tables if set(table.data) - data.keys()]
        tables = [table for table in tables if table.name not in lacking]
        if lacking:
            print(f"left out, their data is not given: {', '.join(lacking)}")
    for file in (file for table in tables for file in table.rows):
        if not (published / file).exists():
            raise SettingsError(
                f"--published is {published}, which has no {file}; call it from the repository, or "
                "name the folder docs/results"
            )
    with explain_interruption(RepeatHint("finished commands and cells", context.obj)):
        reproduce.make_tables(tables, out, jobs=jobs, data=data, extra=extra, published=published)


def check_place(assignment: str, path: str) -> str:
    """Return the path of data; SettingsError where nothing is there."""
    if not Path(path).exists():
        raise SettingsError(f"--set {assignment}: there is no such file or folder")
    return path


def split_assignments(
    assignments: list[str], needed: list[str]
) -> tuple[dict[str, str], list[str]]:
    """Return the paths of data by their names in commands, and the other assignments.

    Args:
        assignments: KEY=VALUE each.
        needed: The data that the tables need.

    Raises:
        SettingsError: `data.path` is given, and the tables need several data sets or none.
    """
    from sims.reproduce import read_data

    data: dict[str, str] = {}
    extra = []
    for assignment in assignments:
        key, _, value = assignment.partition("=")
        name = key.removesuffix(PATH_KEY).upper()
        if key == "data.path":
            if len(needed) != 1:
                raise SettingsError(
                    f"--set data.path={value}: the tables need {', '.join(needed) or 'no data'}; "
                    "give each its own, such as --set fashion.path=PATH"
                )
            data[needed[0]] = check_place(assignment, value)
        elif key.endswith(PATH_KEY) and name in read_data():
            data[name] = check_place(assignment, value)
        else:
            extra.append(assignment)
    return data, extra
