"""The command `settings`: list every key."""

import json
from typing import Annotated

import typer

from fedcel.errors import SettingsError

EXAMPLES = ("fedcel settings", "fedcel settings cel", "fedcel settings --json")


def settings_command(
    group: Annotated[
        str | None,
        typer.Argument(
            help="A group of settings, such as `cel`, or one key; default: all.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """List every setting: its type and range, its default, and what it does."""
    from fedcel.settings import describe_settings

    rows = list(describe_settings())
    if group is not None:
        groups = dict.fromkeys(key.partition(".")[0] for key, *_ in rows)
        rows = [row for row in rows if group in (row[0], row[0].partition(".")[0])]
        if not rows:
            raise SettingsError(f"no group of settings {group!r}; there are {', '.join(groups)}")
    if as_json:
        names = ("key", "default", "description", "type")
        print(json.dumps([dict(zip(names, row, strict=True)) for row in rows], indent=1))
        return
    for key, default, description, kind in rows:
        value = str(default).lower() if isinstance(default, bool) else default
        print(f"{key} = {value}\n    {description}\n    Takes: {kind}.")
