"""Every setting of a run, its range, and the rules between settings."""

from fedcel.data.data_settings import DataSettings
from fedcel.nets.net_settings import NetSettings
from fedcel.privacy.privacy_settings import MECHANISMS, NOISES, PrivacySettings, check_private
from fedcel.settings.attack import AttackSettings
from fedcel.settings.cel import (
    CEL_KINDS,
    Attention,
    AttentionStep,
    CelSettings,
    ClassShare,
    ClusterForm,
    Clustering,
    InformationBound,
    OutlierRule,
    Pool,
    check_entropy_bonus,
    check_hybrid_clusters,
    check_noise,
    check_outlier_rule,
    check_penalty,
)
from fedcel.settings.chain import MIN_ESS, MIN_SAMPLED_ROUNDS, ChainSettings
from fedcel.settings.defence import DEFENCES, LAW_DEFENCES, DefenceSettings
from fedcel.settings.local import SAMPLERS, LocalSettings
from fedcel.settings.parsing import (
    Scalar,
    drop_foreign_keys,
    dump_settings,
    flatten_settings,
    merge_layers,
    parse_settings,
)
from fedcel.settings.prior import ConsistentPrior, FixedPrior, NoPrior, Prior
from fedcel.settings.run_config import CONNECTED_NODES, UNSET, parse_run_config
from fedcel.settings.run_settings import (
    Settings,
    burn_in_rounds,
    check_schedule,
    cut_sigma,
    find_noise_shape,
)
from fedcel.settings.settings_reference import SELECTORS, Setting, describe_kind, describe_settings
from fedcel.settings.strategy import OWN_STRATEGY, StrategySettings, parse_strategy_arguments
from fedcel.settings.update import UpdateSettings

__all__ = [
    "CEL_KINDS",
    "CONNECTED_NODES",
    "DEFENCES",
    "LAW_DEFENCES",
    "MECHANISMS",
    "MIN_ESS",
    "MIN_SAMPLED_ROUNDS",
    "NOISES",
    "OWN_STRATEGY",
    "SAMPLERS",
    "SELECTORS",
    "UNSET",
    "AttackSettings",
    "Attention",
    "AttentionStep",
    "CelSettings",
    "ChainSettings",
    "ClassShare",
    "ClusterForm",
    "Clustering",
    "ConsistentPrior",
    "DataSettings",
    "DefenceSettings",
    "FixedPrior",
    "InformationBound",
    "LocalSettings",
    "NetSettings",
    "NoPrior",
    "OutlierRule",
    "Pool",
    "Prior",
    "PrivacySettings",
    "Scalar",
    "Setting",
    "Settings",
    "StrategySettings",
    "UpdateSettings",
    "burn_in_rounds",
    "check_entropy_bonus",
    "check_hybrid_clusters",
    "check_noise",
    "check_outlier_rule",
    "check_penalty",
    "check_private",
    "check_schedule",
    "cut_sigma",
    "describe_kind",
    "describe_settings",
    "drop_foreign_keys",
    "dump_settings",
    "find_noise_shape",
    "flatten_settings",
    "merge_layers",
    "parse_run_config",
    "parse_settings",
    "parse_strategy_arguments",
]
