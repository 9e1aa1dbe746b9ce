"""Arguments and options that several commands share."""

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.markup import escape

from fedcel.errors import SettingsError

Engine = Literal["ray", "loop", "processes"]

Scenario = Annotated[
    str,
    typer.Argument(
        metavar="SCENARIO",
        help="Name of a packaged scenario, or path of a TOML file.",
        show_default=False,
        autocompletion=lambda incomplete: [
            name for name in list_scenario_titles() if name.startswith(incomplete)
        ],
    ),
]
RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a finished run.", show_default=False)
]
BenchFolder = Annotated[
    Path, typer.Argument(metavar="BENCH", help="Folder of a bench.", show_default=False)
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a setting; repeat for more. `fedcel settings` lists them.",
        show_default=False,
    ),
]
EngineChoice = Annotated[
    Engine | None,
    typer.Option(
        help="What trains the clients; default: the setting `engine`.", show_default=False
    ),
]
MarkdownFile = Annotated[
    Path | None,
    typer.Option("--out", help="Markdown file to write; default: print it.", show_default=False),
]
Jobs = Annotated[int, typer.Option(min=1, help="Trainings or attacks at once.")]


def list_scenario_titles() -> dict[str, str]:
    """Return the packaged scenarios' names and titles, in the order of names."""
    folder = files("sims").joinpath("scenarios")
    paths = sorted((Path(str(item)) for item in folder.iterdir()), key=lambda path: path.stem)
    return {
        path.stem: str(tomllib.loads(path.read_text())["title"])
        for path in paths
        if path.suffix == ".toml"
    }


def format_examples(*lines: str) -> str:
    """Return the end of a command's help: commands to copy, one a line."""
    return "\n\n".join(
        ["[bold]Examples[/bold]", *(f"[cyan]{escape(line)}[/cyan]" for line in lines)]
    )


def parse_positive_numbers(option: str, text: str) -> tuple[float, ...]:
    """Return the numbers of a comma-separated option.

    Raises:
        SettingsError: One of them is no number above 0.
    """
    try:
        numbers = tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        numbers = (0.0,)
    if not all(0 < number < float("inf") for number in numbers):
        raise SettingsError(f"{option} is {text!r}, must be numbers above 0, such as 4,10")
    return numbers
