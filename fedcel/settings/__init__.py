"""Every setting of a run, its range, and the rules between settings."""

from typing import TYPE_CHECKING

from fedcel.lazy import export_lazily as _export_lazily

if TYPE_CHECKING:
    from fedcel.attacks import AttackSettings as AttackSettings
    from fedcel.data import DataSettings as DataSettings
    from fedcel.nets import NetSettings as NetSettings
    from fedcel.posterior import MIN_ESS as MIN_ESS
    from fedcel.posterior import MIN_SAMPLED_ROUNDS as MIN_SAMPLED_ROUNDS
    from fedcel.posterior import ChainSettings as ChainSettings
    from fedcel.posterior import ConsistentPrior as ConsistentPrior
    from fedcel.posterior import FixedPrior as FixedPrior
    from fedcel.posterior import LocalSettings as LocalSettings
    from fedcel.posterior import NoPrior as NoPrior
    from fedcel.posterior import Prior as Prior
    from fedcel.privacy import PrivacySettings as PrivacySettings
    from fedcel.privacy import UpdateSettings as UpdateSettings
    from fedcel.settings.parsing import Scalar as Scalar
    from fedcel.settings.parsing import drop_foreign_keys as drop_foreign_keys
    from fedcel.settings.parsing import dump_settings as dump_settings
    from fedcel.settings.parsing import flatten_settings as flatten_settings
    from fedcel.settings.parsing import merge_layers as merge_layers
    from fedcel.settings.parsing import nest_settings as nest_settings
    from fedcel.settings.parsing import parse_settings as parse_settings
    from fedcel.settings.run_config import CONNECTED_NODES as CONNECTED_NODES
    from fedcel.settings.run_config import UNSET as UNSET
    from fedcel.settings.run_config import parse_run_config as parse_run_config
    from fedcel.settings.run_settings import Settings as Settings
    from fedcel.settings.run_settings import burn_in_rounds as burn_in_rounds
    from fedcel.settings.settings_reference import SELECTORS as SELECTORS
    from fedcel.settings.settings_reference import Setting as Setting
    from fedcel.settings.settings_reference import describe_settings as describe_settings
    from fedcel.settings.strategy import OWN_STRATEGY as OWN_STRATEGY
    from fedcel.settings.strategy import StrategySettings as StrategySettings
    from fedcel.settings.strategy import parse_strategy_arguments as parse_strategy_arguments
else:
    __all__, __getattr__, __dir__ = _export_lazily(__name__, __file__)
