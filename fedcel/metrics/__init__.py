"""Scores of predicted probabilities, intervals, and spreads of features."""

from fedcel.metrics.calibration import (
    bald,
    ece,
    nll,
    predictive_entropy,
    reliability,
    score_probabilities,
)
from fedcel.metrics.chance import chance_accuracy, is_at_chance
from fedcel.metrics.intervals import (
    NORMAL_QUANTILE,
    UNSEEN_EVENTS,
    mean_half_width,
    sample_half_width,
    share_interval,
)
from fedcel.metrics.spread import between_group_spread, within_class_spread

__all__ = [
    "NORMAL_QUANTILE",
    "UNSEEN_EVENTS",
    "bald",
    "between_group_spread",
    "chance_accuracy",
    "ece",
    "is_at_chance",
    "mean_half_width",
    "nll",
    "predictive_entropy",
    "reliability",
    "sample_half_width",
    "score_probabilities",
    "share_interval",
    "within_class_spread",
]
