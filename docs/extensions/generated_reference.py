"""Pages that are generated from the code: settings, commands, scenarios, published tables.

A comment on a line of its own, `<!-- reference settings -->`, is replaced by Markdown.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial

import click
import typer

from fedcel.settings import describe_settings
from fedcel.settings_table import describe_kind
from published_tables import DATA, TABLES, describe_hours, format_command_table
from sims.bench import scenario
from sims.commands.main import app

COMMENT = re.compile(r"^<!-- reference (?P<kind>[a-z-]+) -->$", re.MULTILINE)
MISSING = "–"


def draw_references(text: str) -> str:
    """Return a page with its comments replaced by what they name; KeyError for an unknown one."""
    return COMMENT.sub(lambda found: "\n".join(REFERENCES[found["kind"]]()), text)


def escape_cell(text: str) -> str:
    """Return a text that ends no cell and starts no tag."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def list_settings() -> Iterator[str]:
    """Return a section a group of settings, a row a key."""
    group = ""
    for key, default, description, words, kinds in describe_settings():
        first = key.partition(".")[0] if "." in key else "run"
        if first != group:
            group = first
            yield f"\n## {group}\n\n| setting | default | takes | what it does |\n|---|---|---|---|"
        value = str(default).lower() if isinstance(default, bool) else str(default)
        shown = f"`{value}`" if value else MISSING
        of_kinds = f" Only of {', '.join(map(describe_kind, kinds))}." if kinds else ""
        sentence = escape_cell(f"{description}{of_kinds}")
        yield f"| `{key}` | {shown} | {escape_cell(words)} | {sentence} |"


def list_commands() -> Iterator[str]:
    """Return a section a command: its help, its arguments and options, its examples."""
    root = typer.main.get_command(app)
    yield from describe_command(root, "fedcel", 2)


def describe_command(command: click.Command, name: str, level: int) -> Iterator[str]:
    """Return the section of one command, and those of the commands below it."""
    inner = getattr(command, "commands", {})
    if not inner:
        yield f"\n{'#' * level} {name}\n"
        yield re.sub(r"\s+", " ", (command.help or "").split("\f")[0]).strip()
        shown = [one for one in command.params if not getattr(one, "hidden", False)]
        if shown:
            yield "\n| argument or option | default | what it does |\n|---|---|---|"
        for parameter in shown:
            names = ", ".join(f"`{one}`" for one in [*parameter.opts, *parameter.secondary_opts])
            if not isinstance(parameter, click.Option):
                names = f"`{parameter.human_readable_name}`"
            default = parameter.default
            empty = default is None or callable(default) or default in ("", False, ())
            value = MISSING if empty else f"`{default}`"
            text = escape_cell(getattr(parameter, "help", "") or "")
            yield f"| {names} | {value} | {text} |"
        lines = [
            re.sub(r"\[/?(?:cyan|bold)\]", "", line) for line in (command.epilog or "").splitlines()
        ]
        examples = dict.fromkeys(line for line in lines if line.startswith("fedcel "))
        if examples:
            yield "\n".join(["", "```sh", *examples, "```"])
    for key, value in inner.items():
        yield from describe_command(value, f"{name} {key}", level)


def list_scenarios() -> Iterator[str]:
    """Return a row a packaged scenario: what it compares, how many variants and trainings."""
    yield "| scenario | what it compares | variants | trainings |\n|---|---|---|---|"
    for name in scenario.list_packaged():
        packaged = scenario.read_scenario(name)
        variants = ", ".join(f"`{variant.name}`" for variant in packaged.variants)
        cells = len(scenario.list_cells(packaged, {}))
        yield f"| `{name}` | {escape_cell(packaged.title)} | {variants} | {cells} |"


def list_data() -> Iterator[str]:
    """Return a row a data set that commands of published tables need."""
    yield "| name here | what it is |\n|---|---|"
    for name, text in DATA.items():
        yield f"| `{name}` | {text} |"


def state_hours() -> Iterator[str]:
    """Return how long the published tables take."""
    yield describe_hours(TABLES.values())


REFERENCES: dict[str, Callable[[], Iterator[str]]] = {
    "settings": list_settings,
    "commands": list_commands,
    "scenarios": list_scenarios,
    "data": list_data,
    "hours": state_hours,
    "tables-leakage": partial(format_command_table, "leakage"),
    "tables-attacks": partial(format_command_table, "attacks"),
    "tables-posteriors": partial(format_command_table, "posteriors"),
}
