"""Arguments and options that several commands share."""

import math
import time
import tomllib
from functools import partial
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Literal

import typer
from rich.markup import escape

from fedcel.errors import SettingsError, replace_unwritable

option = partial(typer.Option, show_default=False)
"""Declares an option whose help says its default."""
argument = partial(typer.Argument, show_default=False)
"""Declares an argument, which has no default."""
PROBE_BYTES = 2**20
"""Written to see whether there is room at all."""
Engine = Literal["ray", "local", "auto", "loop", "batched", "processes"]  # former names last

Scenario = Annotated[
    str,
    argument(
        metavar="SCENARIO",
        help="Name of a packaged scenario, or path of a TOML file.",
        autocompletion=lambda incomplete: [
            name for name in list_scenario_titles() if name.startswith(incomplete)
        ],
    ),
]
RunFolder = Annotated[Path, argument(metavar="RUN", help="Folder of a finished run.")]
FinishedFolder = Annotated[
    Path, argument(metavar="RUN_OR_BENCH", help="Folder of a finished run or bench.")
]
BenchFolder = Annotated[Path, argument(metavar="BENCH", help="Folder of a bench.")]
OutFolder = Annotated[
    Path | None, option("--out", help="Folder to write; default: runs/SCENARIO-TIME.")
]
Assignments = Annotated[
    list[str] | None,
    option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a setting; repeat for more. `fedcel settings` lists them.",
    ),
]
EngineChoice = Annotated[
    Engine | None,
    option(
        metavar="[ray|local|auto]",
        help="Engine that trains the clients; default: the setting `engine`.",
    ),
]
ServerPort = Annotated[
    int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
]
LocalHost = Annotated[str, typer.Option("--host", help="Address to listen on.")]
OpenToOthers = Annotated[
    bool,
    typer.Option("--insecure", help="Open it to other machines, over plain HTTP without a key."),
]
Jobs = Annotated[
    int, typer.Option(min=1, help="Number of processes that train or attack in parallel.")
]
ImageSource = Annotated[
    str,
    option(
        help="Images: a folder of class folders, of Parquet, Arrow, CIFAR-10 or MNIST files, an "
        "npz file, digits, or package.module:object."
    ),
]
Weights = Annotated[
    str,
    option(
        metavar="FILE",
        help="Parameters of a model of torchvision or timm: .safetensors, .pt or .pth.",
    ),
]
ImageSize = Annotated[
    int, typer.Option(min=0, help="Side in pixels to resize images to; 0: no resizing.")
]
Grey = Annotated[bool, typer.Option("--grey", help="Convert colours to luminance.")]
Mean = Annotated[
    str,
    option(
        metavar="NUMBERS",
        help="Mean by channel, subtracted from images in [0, 1]; with three numbers, grey images "
        "get three channels. Default: those of a timm or torchvision model, else 0.",
    ),
]
Deviation = Annotated[
    str,
    option(
        metavar="NUMBERS", help="Divisor after --mean, by channel; default: as for --mean, else 1."
    ),
]
LabelColumn = Annotated[
    str,
    option(
        metavar="NAME",
        help="Label column of a Hugging Face data set; default: the only ClassLabel column, else "
        "the only integer column.",
    ),
]


def list_scenario_titles(table: str | None = None) -> dict[str, str]:
    """Return the packaged scenarios' names and titles, by name; only those that have a table."""
    paths = sorted(Path(str(files("sims") / "scenarios")).glob("*.toml"))
    scenarios = {path.stem: tomllib.loads(path.read_text()) for path in paths}
    return {
        name: str(scenario["title"])
        for name, scenario in scenarios.items()
        if table is None or table in scenario
    }


def format_examples(*lines: str) -> str:
    """Return the end of a command's help: commands to copy, one a line."""
    return "\n\n".join(
        ["[bold]Examples[/bold]", *(f"[cyan]{escape(line)}[/cyan]" for line in lines)]
    )


def format_scenarios(table: str | None = None) -> str:
    """Return the packaged scenarios as the end of a command's help."""
    titles = list_scenario_titles(table).items()
    lines = [f"[cyan]{name}[/cyan]: {escape(title)}" for name, title in titles]
    return "\n\n".join(["[bold]Packaged scenarios[/bold]", *lines])


def check_folder(out: Path) -> None:
    """Refuse, before the work, a folder that cannot be made or written into.

    Raises:
        SettingsError: A file is in its place, nothing can be written there, or its name is no text.
    """
    if str(out) != replace_unwritable(str(out)):
        raise SettingsError(
            f"--out is {str(out)!r}, must be of characters that UTF-8 has; name another"
        )
    existing = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise SettingsError(
            f"--out is {out}, but {existing} is a file; name a folder, it is made if need be"
        )
    try:
        with TemporaryFile(dir=existing) as file:
            file.write(bytes(PROBE_BYTES))
    except OSError as error:
        raise SettingsError(
            f"--out is {out}, but {existing} cannot be written into ({error.strerror}); name "
            "another folder, or make room there"
        ) from error


def check_local_host(host: str, insecure: bool) -> tuple[str, ...] | None:
    """Return the names that requests may call this machine by; None: any.

    Raises:
        SettingsError: Other machines would be let in unasked.
    """
    from clients.service_messages import LOOPBACK_HOSTS

    if host not in LOOPBACK_HOSTS and not insecure:
        raise SettingsError(
            f"--host is {host!r}: whoever reaches it could see the images of this run; leave it "
            f"out, or let other machines in with --insecure ({', '.join(LOOPBACK_HOSTS)} need none)"
        )
    return None if insecure else tuple(LOOPBACK_HOSTS)


def parse_numbers(option: str, text: str, *, above: float = -math.inf) -> tuple[float, ...]:
    """Return the numbers of a comma-separated option.

    Raises:
        SettingsError: One of them is no finite number above the limit.
    """
    try:
        numbers = tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        numbers = (math.nan,)
    if not all(above < number < math.inf for number in numbers):
        which, example = ("", "0.5,0.5,0.5") if above < 0 else (f" above {above:g}", "4,10")
        raise SettingsError(f"{option} is {text!r}, must be numbers{which}, such as {example}")
    return numbers


def choose_folder(
    context: typer.Context, scenario: str, out: Path | None
) -> tuple[Path, list[str]]:
    """Return the folder to write, and the command's arguments with that folder named."""
    folder = out or Path("runs") / f"{Path(scenario).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    check_folder(folder)
    if out is not None:
        return out, context.obj
    return folder, [*context.obj, "--out", str(folder)]
