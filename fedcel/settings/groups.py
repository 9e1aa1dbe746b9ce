"""The groups of settings, one table of the TOML file each."""

from fedcel.settings.answers import Attack, Privacy
from fedcel.settings.data import Data, Net
from fedcel.settings.group_base import Group, Off, Positive, PositiveList, to_kebab
from fedcel.settings.losses import CEL_KINDS, DEFENCES, Cel, Defence
from fedcel.settings.training import Chain, Local, Prior, Strategy, Updates

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
    "to_kebab",
]
