"""Every setting of a run, its range, and the rules between settings."""

from fedcel.attacks import AttackSettings
from fedcel.data import DataSettings
from fedcel.nets import NetSettings
from fedcel.posterior import (
    MIN_ESS,
    MIN_SAMPLED_ROUNDS,
    SAMPLERS,
    ChainSettings,
    ConsistentPrior,
    FixedPrior,
    LocalSettings,
    NoPrior,
    Prior,
)
from fedcel.privacy import PrivacySettings, UpdateSettings
from fedcel.settings.parsing import (
    Scalar,
    drop_foreign_keys,
    dump_settings,
    flatten_settings,
    merge_layers,
    parse_settings,
)
from fedcel.settings.run_config import CONNECTED_NODES, UNSET, parse_run_config
from fedcel.settings.run_settings import (
    Settings,
    burn_in_rounds,
    check_schedule,
)
from fedcel.settings.settings_reference import SELECTORS, Setting, describe_kind, describe_settings
from fedcel.settings.strategy import OWN_STRATEGY, StrategySettings, parse_strategy_arguments

__all__ = [
    "CONNECTED_NODES",
    "MIN_ESS",
    "MIN_SAMPLED_ROUNDS",
    "OWN_STRATEGY",
    "SAMPLERS",
    "SELECTORS",
    "UNSET",
    "AttackSettings",
    "ChainSettings",
    "ConsistentPrior",
    "DataSettings",
    "FixedPrior",
    "LocalSettings",
    "NetSettings",
    "NoPrior",
    "Prior",
    "PrivacySettings",
    "Scalar",
    "Setting",
    "Settings",
    "StrategySettings",
    "UpdateSettings",
    "burn_in_rounds",
    "check_schedule",
    "describe_kind",
    "describe_settings",
    "drop_foreign_keys",
    "dump_settings",
    "flatten_settings",
    "merge_layers",
    "parse_run_config",
    "parse_settings",
    "parse_strategy_arguments",
]
