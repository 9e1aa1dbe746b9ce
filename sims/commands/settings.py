"""The command `settings`: list every key."""

import json
from typing import Annotated

import typer

from fedcel.errors import SettingsError
from sims.commands.options import argument

EXAMPLES = ("fedcel settings", "fedcel settings cel", "fedcel settings --json")


def settings_command(
    group: Annotated[
        str | None, argument(help="Group of settings, such as `cel`, or one key; default: all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """List every setting with type, range, default and description."""
    from fedcel.settings import describe_settings

    rows = list(describe_settings())
    if group is not None:
        groups = dict.fromkeys(row.key.partition(".")[0] for row in rows)
        rows = [row for row in rows if group in (row.key, row.key.partition(".")[0])]
        if not rows:
            raise SettingsError(f"no group of settings {group!r}; there are {', '.join(groups)}")
    if as_json:
        print(json.dumps([row._asdict() for row in rows], indent=1))
        return
    for row in rows:
        value = str(row.default).lower() if isinstance(row.default, bool) else row.default
        print(f"{row.key} = {value}\n    {row.description}\n    Takes: {row.type}.")
        if row.kinds:
            names = ("import strings" if kind == ":" else kind for kind in row.kinds)
            print(f"    Only of: {', '.join(names)}.")
