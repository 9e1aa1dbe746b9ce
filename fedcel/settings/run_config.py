"""Flower's run config: the settings of a run, and the keys that only Flower's two apps read."""

from collections.abc import Mapping

from fedcel.errors import SettingsError
from fedcel.settings.parsing import parse_settings
from fedcel.settings.run_settings import Settings
from fedcel.settings.settings_reference import SELECTORS, describe_settings

UNSET = "none"
CONNECTED_NODES = "nodes"
"""Value of `clients`: as many as are connected when the run starts."""
_SERVER_KEYS = ("out", "resume", "recount")
"""Read by the ServerApp alone."""


def parse_run_config(config: Mapping[str, object], clients: int | None = None) -> Settings:
    """Parse the settings in a run config.

    Args:
        config: Dotted keys, as `[tool.flwr.app.config]` and `--run-config` give them.
        clients: What `clients` is where it is left to the nodes that are connected.

    Returns:
        The settings.

    Raises:
        SettingsError: A setting is wrong, or nobody said how many clients there are.
    """
    flat = {key: value for key, value in config.items() if key not in _SERVER_KEYS}
    if flat.get("clients") == CONNECTED_NODES:
        if clients is None:
            raise SettingsError(
                f"clients is {CONNECTED_NODES!r}, and the message does not say how many there are"
            )
        flat["clients"] = clients
    defaults = {setting.key: setting.default for setting in describe_settings()}
    # The app declares the keys of every kind: those that are at their default were not given.
    declared = {key: value for key, value in flat.items() if value == defaults.get(key)}
    kinds = {key: flat.get(key, defaults[key]) for key in SELECTORS}
    changed = {key: value for key, value in flat.items() if key not in declared}
    return parse_settings(declared, kinds | changed)
