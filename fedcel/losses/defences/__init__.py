"""Rival defences of smashed data: what they make of the net, the cut, the loss, what is sent."""

from fedcel.losses.defences.adversarial import Adversarial
from fedcel.losses.defences.bottleneck import InformationBottleneck, gaussian_divergence
from fedcel.losses.defences.build_defence import (
    apply_transform,
    build_cut,
    build_defence,
    defended_net_settings,
)
from fedcel.losses.defences.contract import (
    DEFENCE_TESTS,
    TRANSFORM_TESTS,
    DefenceCase,
    TransformCase,
)
from fedcel.losses.defences.learned_noise import LearnedNoise
from fedcel.losses.defences.nopeek import NoPeek
from fedcel.losses.defences.protocol import Defence, LawDefence, Transform
from fedcel.losses.defences.transform import append_transform

__all__ = [
    "DEFENCE_TESTS",
    "TRANSFORM_TESTS",
    "Adversarial",
    "Defence",
    "DefenceCase",
    "InformationBottleneck",
    "LawDefence",
    "LearnedNoise",
    "NoPeek",
    "Transform",
    "TransformCase",
    "append_transform",
    "apply_transform",
    "build_cut",
    "build_defence",
    "defended_net_settings",
    "gaussian_divergence",
]
