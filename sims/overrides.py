"""Settings given on the command line: `--set KEY=VALUE`."""

import tomllib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedcel.errors import SettingsError

if TYPE_CHECKING:
    from fedcel.settings import Scalar, Settings


def parse_overrides(
    assignments: Sequence[str] | None, engine: str | None = None
) -> "dict[str, Scalar]":
    """Parse --set, and --engine where it is given; SettingsError on what is not KEY=VALUE."""
    values: dict[str, Scalar] = {}
    for assignment in assignments or ():
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise SettingsError(
                f"--set {assignment!r} is not of the form KEY=VALUE, such as --set rounds=60"
            )
        values[key.strip()] = parse_scalar(text.strip())
    if engine:
        values["engine"] = engine
    return values


def parse_scalar(text: str) -> "Scalar":
    """Return a TOML scalar, or the text itself: --set net.name=cnn needs no quotes."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, str | int | float | bool) else text


def override_group(settings: "Settings", values: "Mapping[str, Scalar]", group: str) -> "Settings":
    """Change values in one group of a finished run's settings.

    SettingsError where a value is of another group, which a finished run keeps.
    """
    from fedcel.settings import dump_settings, parse_settings

    for key in values:
        if not key.startswith(f"{group}."):
            raise SettingsError(
                f"--set {key}: a finished run keeps it; only {group}.* can change, see "
                f"`fedcel settings {group}`"
            )
    return parse_settings(dump_settings(settings), values)
