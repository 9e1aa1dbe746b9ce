"""Every setting of a run, its range, and the rules between settings."""

from fedcel.settings.parsing import Settings, describe_settings, dump_settings, parse_settings

__all__ = [
    "Settings",
    "describe_settings",
    "dump_settings",
    "parse_settings",
]
