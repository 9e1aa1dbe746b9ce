"""Every setting of a run, its range, and the rules between settings."""

from fedcel.settings.answers import NOISES, AttackSettings, PrivacySettings, sensitivity
from fedcel.settings.checks import OWN_STRATEGY
from fedcel.settings.data import DataSettings, NetSettings
from fedcel.settings.loss_checks import check_schedule
from fedcel.settings.losses import CelSettings, DefenceSettings
from fedcel.settings.parsing import (
    Scalar,
    describe_settings,
    dump_settings,
    flatten_settings,
    parse_settings,
)
from fedcel.settings.privacy_checks import check_sensitivity
from fedcel.settings.run_settings import Settings, burn_in_rounds, cut_sigma
from fedcel.settings.training import (
    LEAST_DRAWS,
    SAMPLERS,
    LocalSettings,
    PriorSettings,
    StrategySettings,
    UpdateSettings,
)

__all__ = [
    "LEAST_DRAWS",
    "NOISES",
    "OWN_STRATEGY",
    "SAMPLERS",
    "AttackSettings",
    "CelSettings",
    "DataSettings",
    "DefenceSettings",
    "LocalSettings",
    "NetSettings",
    "PriorSettings",
    "PrivacySettings",
    "Scalar",
    "Settings",
    "StrategySettings",
    "UpdateSettings",
    "burn_in_rounds",
    "check_schedule",
    "check_sensitivity",
    "cut_sigma",
    "describe_settings",
    "dump_settings",
    "flatten_settings",
    "parse_settings",
    "sensitivity",
]
