"""Privacy-preserving split inference, trained federatedly, measured honestly.

Names are loaded when they are first used, so that the command line answers at once and a library
that one part needs is not asked for by another.
"""

from typing import TYPE_CHECKING

from fedcel.lazy import export_lazily as _export_lazily

if TYPE_CHECKING:
    from fedcel import attacks as attacks
    from fedcel import data as data
    from fedcel import federation as federation
    from fedcel import leakage as leakage
    from fedcel import losses as losses
    from fedcel import metrics as metrics
    from fedcel import nets as nets
    from fedcel import posterior as posterior
    from fedcel import privacy as privacy
    from fedcel import runs as runs
    from fedcel import settings as settings
    from fedcel import testing as testing
    from fedcel.attacks import Inversion as Inversion
    from fedcel.attacks.inversion import invert as invert
    from fedcel.data import Images as Images
    from fedcel.data import Splits as Splits
    from fedcel.data import load_splits as load_splits
    from fedcel.errors import DataError as DataError
    from fedcel.errors import DivergedError as DivergedError
    from fedcel.errors import EngineError as EngineError
    from fedcel.errors import FailedError as FailedError
    from fedcel.errors import FedcelError as FedcelError
    from fedcel.errors import LeakError as LeakError
    from fedcel.errors import LeakLimitError as LeakLimitError
    from fedcel.errors import LedgerError as LedgerError
    from fedcel.errors import ModelVersionError as ModelVersionError
    from fedcel.errors import NetError as NetError
    from fedcel.errors import PluginError as PluginError
    from fedcel.errors import RefusedImagesError as RefusedImagesError
    from fedcel.errors import RoundError as RoundError
    from fedcel.errors import RunError as RunError
    from fedcel.errors import ServiceError as ServiceError
    from fedcel.errors import SettingsError as SettingsError
    from fedcel.errors import SpentError as SpentError
    from fedcel.extras import MissingExtraError as MissingExtraError
    from fedcel.federation import ClientRound as ClientRound
    from fedcel.federation import ClientUpdate as ClientUpdate
    from fedcel.federation.local_steps import train_clients as train_clients
    from fedcel.leakage import CutComparison as CutComparison
    from fedcel.leakage import CutLimits as CutLimits
    from fedcel.leakage import Leakage as Leakage
    from fedcel.leakage import MeasuredCut as MeasuredCut
    from fedcel.leakage import SmashedData as SmashedData
    from fedcel.leakage import fit_image_prior as fit_image_prior
    from fedcel.leakage import optimal_leak as optimal_leak
    from fedcel.leakage.calibrate_noise import calibrate_noise as calibrate_noise
    from fedcel.leakage.certificate import certificate as certificate
    from fedcel.leakage.compare_cuts import compare_cuts as compare_cuts
    from fedcel.leakage.linearised import measure_linearised as measure_linearised
    from fedcel.leakage.measure_leakage import (
        measure_attribute_leakage as measure_attribute_leakage,
    )
    from fedcel.leakage.measure_leakage import measure_leakage as measure_leakage
    from fedcel.losses import Batch as Batch
    from fedcel.losses import ClientLoss as ClientLoss
    from fedcel.losses import ClientLossTerm as ClientLossTerm
    from fedcel.losses import WeightedTerm as WeightedTerm
    from fedcel.losses.cel import ClusterCEL as ClusterCEL
    from fedcel.losses.cel import GatedCEL as GatedCEL
    from fedcel.losses.cel import HybridCEL as HybridCEL
    from fedcel.losses.cel import MutualInformationCEL as MutualInformationCEL
    from fedcel.losses.cel import PlainCEL as PlainCEL
    from fedcel.losses.cel import Term as Term
    from fedcel.losses.cel import ramp_weight as ramp_weight
    from fedcel.nets import Cut as Cut
    from fedcel.nets import FlatNet as FlatNet
    from fedcel.nets import SplitNet as SplitNet
    from fedcel.nets.narrow import narrow as narrow
    from fedcel.nets.split_model import CutPoint as CutPoint
    from fedcel.nets.split_model import list_cuts as list_cuts
    from fedcel.nets.split_model import split as split
    from fedcel.posterior import Chain as Chain
    from fedcel.posterior import Prediction as Prediction
    from fedcel.posterior.predict import predict as predict
    from fedcel.privacy import Mechanism as Mechanism
    from fedcel.privacy import private_logits as private_logits
    from fedcel.privacy.ledger import Ledger as Ledger
    from fedcel.runs import Posterior as Posterior
    from fedcel.runs import Run as Run
    from fedcel.runs import read_run as read_run
    from fedcel.settings import Settings as Settings
    from fedcel.settings import parse_settings as parse_settings
else:
    __all__, __getattr__, __dir__ = _export_lazily(__name__, __file__)
