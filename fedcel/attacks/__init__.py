"""Attacks: what they see, what they do, how they are scored."""

from fedcel.attacks.averaging import Averaging, Repeated
from fedcel.attacks.base import Attack, Progress
from fedcel.attacks.decoder import Decoder
from fedcel.attacks.defects import defects
from fedcel.attacks.first_layer import FirstLayer
from fedcel.attacks.gan import GANDecoder
from fedcel.attacks.gradients import GradientInversion
from fedcel.attacks.hijack import hijacked
from fedcel.attacks.hybrid import Hybrid
from fedcel.attacks.identification import identification
from fedcel.attacks.inversion import Effort, invert
from fedcel.attacks.logits import LogitInversion
from fedcel.attacks.mi_face import MIFace
from fedcel.attacks.names import ATTACKS, find, parse
from fedcel.attacks.observation import (
    ARCHITECTURE,
    FIRST_LAYER,
    FREE_QUERIES,
    HEAD,
    LOG_PROB,
    LOGITS,
    MEAN,
    NOISELESS,
    UPDATE,
    Observation,
    ObservationArchitecture,
    ObservationFirstLayer,
    ObservationHead,
    ObservationLikelihood,
    ObservationLogits,
    ObservationMean,
    ObservationMisfit,
    ObservationPaid,
    ObservationPooled,
    ObservationUpdate,
    SmashedData,
)
from fedcel.attacks.optimal import OptimalLeak, optimal
from fedcel.attacks.rmle import RMLE
from fedcel.attacks.runner import run
from fedcel.attacks.scorecard import score
from fedcel.attacks.search import BlackBoxSearch
from fedcel.attacks.shadow import Shadow
from fedcel.attacks.unsplit import UnSplit

__all__ = [
    "ARCHITECTURE",
    "ATTACKS",
    "FIRST_LAYER",
    "FREE_QUERIES",
    "HEAD",
    "LOGITS",
    "LOG_PROB",
    "MEAN",
    "NOISELESS",
    "RMLE",
    "UPDATE",
    "Attack",
    "Averaging",
    "BlackBoxSearch",
    "Decoder",
    "Effort",
    "FirstLayer",
    "GANDecoder",
    "GradientInversion",
    "Hybrid",
    "LogitInversion",
    "MIFace",
    "Observation",
    "ObservationArchitecture",
    "ObservationFirstLayer",
    "ObservationHead",
    "ObservationLikelihood",
    "ObservationLogits",
    "ObservationMean",
    "ObservationMisfit",
    "ObservationPaid",
    "ObservationPooled",
    "ObservationUpdate",
    "OptimalLeak",
    "Progress",
    "Repeated",
    "Shadow",
    "SmashedData",
    "UnSplit",
    "defects",
    "find",
    "hijacked",
    "identification",
    "invert",
    "optimal",
    "parse",
    "run",
    "score",
]
