"""Privacy-preserving split inference, trained federatedly, measured honestly."""

from fedcel.arrays import FlatNet
from fedcel.attacks import SmashedData, optimal
from fedcel.cel import ConditionalEntropy, Term
from fedcel.certificate import certificate
from fedcel.cut import Cut
from fedcel.data import Images, Splits, load
from fedcel.defences import Defence
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
from fedcel.losses import Losses
from fedcel.nets import SplitNet
from fedcel.posterior import Chain, Prediction, predict
from fedcel.posterior.model import Posterior
from fedcel.privacy import Mechanism, private_logits
from fedcel.privacy.ledger import Ledger
from fedcel.runs import Run, read
from fedcel.settings import Settings, parse
from fedcel.training import Update, local_update

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
    "Update",
    "certificate",
    "load",
    "local_update",
    "optimal",
    "parse",
    "predict",
    "private_logits",
    "read",
]
