"""Rival defences of smashed data: what they make of the net, the cut, the loss, what is sent."""

from fedcel.losses.defences.adversarial import Adversarial
from fedcel.losses.defences.bottleneck import (
    CEB,
    VIB,
    InformationBottleneck,
    gaussian_divergence,
)
from fedcel.losses.defences.contract import (
    DEFENCE_TESTS,
    TRANSFORM_TESTS,
    DefenceCase,
    TransformCase,
)
from fedcel.losses.defences.imported import DefenceTerm, ImportedDefence
from fedcel.losses.defences.learned_noise import LearnedNoise
from fedcel.losses.defences.nopeek import NoPeek
from fedcel.losses.defences.protocol import Defence, Transform
from fedcel.losses.defences.rival import Bottleneck, Dropout, NoDefence, Noise, Rival
from fedcel.losses.defences.transform import append_transform

__all__ = [
    "CEB",
    "DEFENCE_TESTS",
    "TRANSFORM_TESTS",
    "VIB",
    "Adversarial",
    "Bottleneck",
    "Defence",
    "DefenceCase",
    "DefenceTerm",
    "Dropout",
    "ImportedDefence",
    "InformationBottleneck",
    "LearnedNoise",
    "NoDefence",
    "NoPeek",
    "Noise",
    "Rival",
    "Transform",
    "TransformCase",
    "append_transform",
    "gaussian_divergence",
]
