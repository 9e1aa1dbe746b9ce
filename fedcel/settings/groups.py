"""The groups of settings, one table of the TOML file each."""

from fedcel.settings.answers import AttackSettings, PrivacySettings
from fedcel.settings.data import DataSettings, NetSettings
from fedcel.settings.group_base import Group, Off, Positive, PositiveList, to_kebab
from fedcel.settings.losses import CEL_KINDS, DEFENCES, CelSettings, DefenceSettings
from fedcel.settings.training import (
    ChainSettings,
    LocalSettings,
    PriorSettings,
    StrategySettings,
    UpdateSettings,
)

__all__ = [
    "CEL_KINDS",
    "DEFENCES",
    "AttackSettings",
    "CelSettings",
    "ChainSettings",
    "DataSettings",
    "DefenceSettings",
    "Group",
    "LocalSettings",
    "NetSettings",
    "Off",
    "Positive",
    "PositiveList",
    "PriorSettings",
    "PrivacySettings",
    "StrategySettings",
    "UpdateSettings",
    "to_kebab",
]
