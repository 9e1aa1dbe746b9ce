"""Sampling the posterior: the constants of a round, the chain and its judge, the predictions."""

from fedcel.posterior.chain import Chain
from fedcel.posterior.langevin_constants import noise_variance, prior_pull, temperature_ratio
from fedcel.posterior.predict import Prediction, predict

__all__ = [
    "Chain",
    "Prediction",
    "noise_variance",
    "predict",
    "prior_pull",
    "temperature_ratio",
]
