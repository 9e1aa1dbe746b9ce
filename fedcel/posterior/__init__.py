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
    LangevinMeasures,
    build_sampler,
    langevin_step,
    list_trained_parameters,
    moving_parameters,
    share_sampler,
)
from fedcel.posterior.predict import Prediction, apply_heads, build_device_net, predict
from fedcel.posterior.protocol import NoiseAdder, Sampler
from fedcel.posterior.round_plan import (
    RoundPlan,
    is_encoder_frozen,
    is_sample_candidate,
    noise_variance,
    plan_round,
    select_clients,
    weigh_clients,
)
from fedcel.posterior.sampler_contract import SAMPLER_CHECKS, SamplerCase
from fedcel.posterior.update_information import step_information

__all__ = [
    "DIAGNOSIS_INTERVAL",
    "MAX_R_HAT",
    "SAMPLER_CHECKS",
    "Chain",
    "Diagnosis",
    "LangevinContext",
    "LangevinMeasures",
    "NoiseAdder",
    "Prediction",
    "RoundPlan",
    "Sampler",
    "SamplerCase",
    "Trace",
    "apply_heads",
    "build_device_net",
    "build_sampler",
    "diagnose",
    "is_encoder_frozen",
    "is_sample_candidate",
    "is_sample_due",
    "langevin_step",
    "list_trained_parameters",
    "moving_parameters",
    "noise_variance",
    "plan_round",
    "predict",
    "select_clients",
    "share_sampler",
    "step_information",
    "weigh_clients",
]
