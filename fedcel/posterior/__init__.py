"""Sampling the posterior: the constants of a round, the chain and its judge, the predictions."""

from fedcel.lazy import list_names as _list_names
from fedcel.posterior.chain import MIN_ESS as MIN_ESS
from fedcel.posterior.chain import MIN_SAMPLED_ROUNDS as MIN_SAMPLED_ROUNDS
from fedcel.posterior.chain import Chain as Chain
from fedcel.posterior.diagnostics import MAX_R_HAT as MAX_R_HAT
from fedcel.posterior.diagnostics import Diagnosis as Diagnosis
from fedcel.posterior.diagnostics import Trace as Trace
from fedcel.posterior.diagnostics import diagnose as diagnose
from fedcel.posterior.langevin_step import ClientByClient as ClientByClient
from fedcel.posterior.langevin_step import Langevin as Langevin
from fedcel.posterior.langevin_step import LangevinContext as LangevinContext
from fedcel.posterior.langevin_step import StackedSampler as StackedSampler
from fedcel.posterior.langevin_step import StepNoise as StepNoise
from fedcel.posterior.langevin_step import build_sampler as build_sampler
from fedcel.posterior.langevin_step import langevin_step as langevin_step
from fedcel.posterior.langevin_step import make_client_sampler as make_client_sampler
from fedcel.posterior.predict import Prediction as Prediction
from fedcel.posterior.predict import apply_heads as apply_heads
from fedcel.posterior.predict import build_device_net as build_device_net
from fedcel.posterior.predict import copy_heads as copy_heads
from fedcel.posterior.predict import predict as predict
from fedcel.posterior.sampler import NoiseAdder as NoiseAdder
from fedcel.posterior.sampler import Sampler as Sampler
from fedcel.posterior.sampler_contract import SAMPLER_CHECKS as SAMPLER_CHECKS
from fedcel.posterior.sampler_contract import SamplerCase as SamplerCase
from fedcel.posterior.schedule import ChainSettings as ChainSettings
from fedcel.posterior.schedule import ConsistentPrior as ConsistentPrior
from fedcel.posterior.schedule import ConstantStepSize as ConstantStepSize
from fedcel.posterior.schedule import FixedPrior as FixedPrior
from fedcel.posterior.schedule import LocalSettings as LocalSettings
from fedcel.posterior.schedule import NoPrior as NoPrior
from fedcel.posterior.schedule import Prior as Prior
from fedcel.posterior.schedule import RoundOrder as RoundOrder
from fedcel.posterior.schedule import RoundPlan as RoundPlan
from fedcel.posterior.schedule import RoundSchedule as RoundSchedule
from fedcel.posterior.schedule import noise_variance as noise_variance

__all__ = _list_names(globals())
