"""How good predicted probabilities are, and how far features spread."""

from fedcel.metrics.calibration import (
    accuracy,
    auroc,
    bald,
    brier,
    ece,
    nll,
    predictive_entropy,
    reliability,
    score_probabilities,
)
from fedcel.metrics.chance import chance_accuracy, is_at_chance
from fedcel.metrics.spread import between_group_spread, within_class_spread

__all__ = [
    "accuracy",
    "auroc",
    "bald",
    "between_group_spread",
    "brier",
    "chance_accuracy",
    "ece",
    "is_at_chance",
    "nll",
    "predictive_entropy",
    "reliability",
    "score_probabilities",
    "within_class_spread",
]
