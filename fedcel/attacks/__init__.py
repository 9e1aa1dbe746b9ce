"""Attacks: what they see, what they do, how they are scored."""

from fedcel.attacks.averaging import Averaging, Repeated
from fedcel.attacks.black_box_search import BlackBoxSearch
from fedcel.attacks.contradictions import defects
from fedcel.attacks.decoder import Decoder
from fedcel.attacks.first_layer import FirstLayer
from fedcel.attacks.gan_decoder import GANDecoder
from fedcel.attacks.gradient_inversion import GradientInversion
from fedcel.attacks.hijacked_encoder import hijacked
from fedcel.attacks.hybrid_inversion import Hybrid
from fedcel.attacks.inversion_training import Effort, invert
from fedcel.attacks.logit_inversion import LogitInversion
from fedcel.attacks.mi_face import MIFace
from fedcel.attacks.protocol import Attack, Progress
from fedcel.attacks.registry import ATTACKS, find, parse
from fedcel.attacks.rmle import RMLE
from fedcel.attacks.runner import run
from fedcel.attacks.score_card import score
from fedcel.attacks.shadow import Shadow
from fedcel.attacks.unsplit import UnSplit
from fedcel.leakage.identification import identification
from fedcel.leakage.observation import (
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
from fedcel.leakage.optimal_attacker import OptimalLeak, optimal

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
