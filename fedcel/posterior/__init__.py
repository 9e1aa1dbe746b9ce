"""Sampling the posterior: the constants of a round, the chain and its judge, the predictions."""

from fedcel.posterior.chain import Chain, is_sample_due
from fedcel.posterior.diagnostics import (
    DIAGNOSIS_INTERVAL,
    MAX_R_HAT,
    Diagnosis,
    Trace,
    diagnose,
)
from fedcel.posterior.langevin_step import (
    LangevinContext,
    NoiseAdder,
    Sampler,
    build_sampler,
    langevin_step,
    moving_parameters,
)
from fedcel.posterior.predict import Prediction, apply_heads, build_device_net, predict
from fedcel.posterior.round_plan import (
    RoundPlan,
    is_encoder_frozen,
    is_sample_candidate,
    noise_variance,
    plan_round,
    select_clients,
    weigh_clients,
)

__all__ = [
    "DIAGNOSIS_INTERVAL",
    "MAX_R_HAT",
    "Chain",
    "Diagnosis",
    "LangevinContext",
    "NoiseAdder",
    "Prediction",
    "RoundPlan",
    "Sampler",
    "Trace",
    "apply_heads",
    "build_device_net",
    "build_sampler",
    "diagnose",
    "is_encoder_frozen",
    "is_sample_candidate",
    "is_sample_due",
    "langevin_step",
    "moving_parameters",
    "noise_variance",
    "plan_round",
    "predict",
    "select_clients",
    "weigh_clients",
]
