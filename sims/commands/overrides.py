"""Settings given on the command line: `--set KEY=VALUE`."""

import argparse
import tomllib
from collections.abc import Mapping

from fedcel.errors import SettingsError
from fedcel.settings.parsing import Scalar, Settings, dump, flatten, parse


def overrides(options: argparse.Namespace) -> dict[str, Scalar]:
    """Return --set and --engine as flat settings; SettingsError when one is not KEY=VALUE."""
    found: dict[str, Scalar] = {}
    for item in options.set:
        key, equals, text = item.partition("=")
        if not equals or not key:
            raise SettingsError(f"--set {item!r} is not of the form KEY=VALUE")
        found[key.strip()] = scalar(text.strip())
    if getattr(options, "engine", None):
        found["engine"] = options.engine
    return found


def scalar(text: str) -> Scalar:
    """Return a TOML scalar, or the text itself: --set net.name=cnn needs no quotes."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, str | int | float | bool) else text


def changed(settings: Settings, given: Mapping[str, Scalar], group: str) -> Settings:
    """Return a finished run's settings with others in one group; SettingsError on any else."""
    for key in given:
        if not key.startswith(f"{group}."):
            raise SettingsError(f"--set {key}: a finished run keeps it; only {group}.* can change")
    return parse({**flatten(dump(settings)), **given})
