"""Privacy-preserving split inference, trained federatedly, measured honestly."""

from fedcel.attacks import SmashedData
from fedcel.data import Images, Splits, load
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
from fedcel.federation.local_update import LocalUpdate, local_update
from fedcel.leakage.certificate import certificate
from fedcel.leakage.optimal_attacker import optimal
from fedcel.losses.cel import ConditionalEntropy, Term
from fedcel.losses.composite import Losses
from fedcel.losses.defences import Defence
from fedcel.nets.cut import Cut
from fedcel.nets.flat_parameters import FlatNet
from fedcel.nets.split_net import SplitNet
from fedcel.posterior import Chain, Prediction, predict
from fedcel.posterior.run_posterior import Posterior
from fedcel.privacy import Mechanism, private_logits
from fedcel.privacy.ledger.ledger import Ledger
from fedcel.runs.run_folder import Run, read
from fedcel.settings.parsing import Settings, parse

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
    "load",
    "local_update",
    "optimal",
    "parse",
    "predict",
    "private_logits",
    "read",
]
