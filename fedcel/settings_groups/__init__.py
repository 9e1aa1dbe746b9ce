"""The groups of settings, one table of the TOML file each."""

from fedcel.settings_groups.answers import Attack, Privacy
from fedcel.settings_groups.base import Group, Off, Positive, PositiveList, kebab
from fedcel.settings_groups.data import Data, Net
from fedcel.settings_groups.losses import CEL_KINDS, DEFENCES, Cel, Defence
from fedcel.settings_groups.training import Chain, Local, Prior, Strategy, Updates

__all__ = [
    "CEL_KINDS",
    "DEFENCES",
    "Attack",
    "Cel",
    "Chain",
    "Data",
    "Defence",
    "Group",
    "Local",
    "Net",
    "Off",
    "Positive",
    "PositiveList",
    "Prior",
    "Privacy",
    "Strategy",
    "Updates",
    "kebab",
]
