"""The command `settings`: every key with its type, range, default and one sentence."""

import json
from difflib import get_close_matches
from typing import Annotated

import typer

from fedcel.errors import SettingsError


def settings(
    group: Annotated[
        str | None,
        typer.Argument(
            help="A group of settings, such as `cel`; default: all.", show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """List every setting: its type and range, its default, and what it does."""
    from fedcel.settings import describe_settings

    rows = [
        {"key": key, "default": default, "type": kind, "description": text}
        for key, default, text, kind in describe_settings()
    ]
    if group is not None:
        groups = sorted({str(row["key"]).partition(".")[0] for row in rows})
        if group not in groups:
            near = get_close_matches(group, groups, 1, cutoff=0)[0]
            raise SettingsError(f"no group of settings {group!r}; did you mean {near!r}?")
        rows = [row for row in rows if str(row["key"]).partition(".")[0] == group]
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        shown = str(row["default"]).lower() if row["type"] == "true or false" else row["default"]
        print(f"{row['key']} = {shown}\n    {row['description']}\n    Takes: {row['type']}.")
