"""Sampling the posterior: the constants of a round, the chain and its judge, the predictions."""

from fedcel.posterior.chain import Chain
from fedcel.posterior.diagnostics import CLOSE, Diagnosis, diagnose
from fedcel.posterior.langevin_constants import noise_variance, prior_pull, temperature_ratio
from fedcel.posterior.langevin_step import (
    RoundConstants,
    langevin_step,
    moving_parameters,
    noise_scale,
    nominal_temperature,
)
from fedcel.posterior.predict import Prediction, answer_all, predict, what_is_sent
from fedcel.posterior.round_plan import RoundPlan, is_encoder_frozen, is_kept
from fedcel.posterior.samplers import Kick, init_sampler
from fedcel.posterior.trace import EVERY, Trace

__all__ = [
    "CLOSE",
    "EVERY",
    "Chain",
    "Diagnosis",
    "Kick",
    "Prediction",
    "RoundConstants",
    "RoundPlan",
    "Trace",
    "answer_all",
    "diagnose",
    "init_sampler",
    "is_encoder_frozen",
    "is_kept",
    "langevin_step",
    "moving_parameters",
    "noise_scale",
    "noise_variance",
    "nominal_temperature",
    "predict",
    "prior_pull",
    "temperature_ratio",
    "what_is_sent",
]
