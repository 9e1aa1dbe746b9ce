"""Privacy-preserving split inference, trained federatedly, measured honestly.

Names are loaded when they are first used, so that the command line answers at once and a library
that one part needs is not asked for by another.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedcel.attacks import SmashedData
    from fedcel.data import Images, Splits, load_splits
    from fedcel.errors import (
        DataError,
        DivergedError,
        FailedError,
        FedcelError,
        LeakError,
        LeakLimitError,
        LedgerError,
        NetError,
        PluginError,
        RoundError,
        RunError,
        ServiceError,
        SettingsError,
        SpentError,
    )
    from fedcel.extras import MissingExtraError
    from fedcel.federation.local_update import LocalUpdate, local_update
    from fedcel.leakage.certificate import certificate
    from fedcel.leakage.optimal_attacker import optimal_leak
    from fedcel.losses.cel import ConditionalEntropy, Term
    from fedcel.losses.composite import Losses
    from fedcel.losses.defences import Defence
    from fedcel.nets.cut import Cut
    from fedcel.nets.flat_parameters import FlatNet
    from fedcel.nets.split_net import SplitNet
    from fedcel.posterior.chain import Chain
    from fedcel.posterior.predict import Prediction, predict
    from fedcel.privacy import Mechanism, private_logits
    from fedcel.privacy.ledger import Ledger
    from fedcel.runs.posterior import Posterior
    from fedcel.runs.run_folder import Run, read_run
    from fedcel.settings.parsing import Settings, parse_settings

__all__ = [
    "Chain",
    "ConditionalEntropy",
    "Cut",
    "DataError",
    "Defence",
    "DivergedError",
    "FailedError",
    "FedcelError",
    "FlatNet",
    "Images",
    "LeakError",
    "LeakLimitError",
    "Ledger",
    "LedgerError",
    "LocalUpdate",
    "Losses",
    "Mechanism",
    "MissingExtraError",
    "NetError",
    "PluginError",
    "Posterior",
    "Prediction",
    "RoundError",
    "Run",
    "RunError",
    "ServiceError",
    "Settings",
    "SettingsError",
    "SmashedData",
    "SpentError",
    "SplitNet",
    "Splits",
    "Term",
    "certificate",
    "load_splits",
    "local_update",
    "optimal_leak",
    "parse_settings",
    "predict",
    "private_logits",
    "read_run",
]

_SUBPACKAGES = (
    "attacks",
    "data",
    "federation",
    "leakage",
    "losses",
    "metrics",
    "nets",
    "posterior",
    "privacy",
    "runs",
    "settings",
    "testing",
)

MODULES = {
    "fedcel.attacks": ("SmashedData",),
    "fedcel.data": ("Images", "Splits", "load_splits"),
    "fedcel.errors": (
        "DataError",
        "DivergedError",
        "FailedError",
        "FedcelError",
        "LeakError",
        "LeakLimitError",
        "LedgerError",
        "NetError",
        "PluginError",
        "RoundError",
        "RunError",
        "ServiceError",
        "SettingsError",
        "SpentError",
    ),
    "fedcel.extras": ("MissingExtraError",),
    "fedcel.federation.local_update": ("LocalUpdate", "local_update"),
    "fedcel.leakage.certificate": ("certificate",),
    "fedcel.leakage.optimal_attacker": ("optimal_leak",),
    "fedcel.losses.cel": ("ConditionalEntropy", "Term"),
    "fedcel.losses.composite": ("Losses",),
    "fedcel.losses.defences": ("Defence",),
    "fedcel.nets.cut": ("Cut",),
    "fedcel.nets.flat_parameters": ("FlatNet",),
    "fedcel.nets.split_net": ("SplitNet",),
    "fedcel.posterior.chain": ("Chain",),
    "fedcel.posterior.predict": ("Prediction", "predict"),
    "fedcel.runs.posterior": ("Posterior",),
    "fedcel.privacy": ("Mechanism", "private_logits"),
    "fedcel.privacy.ledger": ("Ledger",),
    "fedcel.runs.run_folder": ("Run", "read_run"),
    "fedcel.settings.parsing": ("Settings", "parse_settings"),
}
"""Where each public name is defined."""

_MODULE_OF_NAME = {name: module for module, names in MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    """Return a public name or a subpackage, loaded now."""
    if name in _MODULE_OF_NAME:
        value: object = getattr(import_module(_MODULE_OF_NAME[name]), name)
    elif name in _SUBPACKAGES:
        value = import_module(f"fedcel.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return all public names, loaded or not."""
    return [*__all__, *_SUBPACKAGES]
