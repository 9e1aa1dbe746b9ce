"""Attacks: what they see, what they do, how they are scored."""

from fedcel.attacks.base import Attack, Progress
from fedcel.attacks.decoder import Decoder
from fedcel.attacks.identification import identification
from fedcel.attacks.inversion import Effort, invert
from fedcel.attacks.logits import LogitInversion
from fedcel.attacks.observation import (
    FREE_QUERIES,
    LOG_PROB,
    MEAN,
    NOISELESS,
    Observation,
    ObservationLikelihood,
    ObservationMean,
    SmashedData,
)
from fedcel.attacks.optimal import OptimalLeak, optimal
from fedcel.attacks.runner import ATTACKS, run
from fedcel.attacks.scorecard import score

__all__ = [
    "ATTACKS",
    "FREE_QUERIES",
    "LOG_PROB",
    "MEAN",
    "NOISELESS",
    "Attack",
    "Decoder",
    "Effort",
    "LogitInversion",
    "Observation",
    "ObservationLikelihood",
    "ObservationMean",
    "OptimalLeak",
    "Progress",
    "SmashedData",
    "identification",
    "invert",
    "optimal",
    "run",
    "score",
]
