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

__all__ = [
    "accuracy",
    "auroc",
    "bald",
    "brier",
    "ece",
    "nll",
    "predictive_entropy",
    "reliability",
    "score_probabilities",
]
