"""Rival defences of smashed data: what they make of the net, the cut, the loss, what is sent."""

from fedcel.losses.defences.adversarial import Adversarial
from fedcel.losses.defences.bottleneck import (
    CEB,
    VIB,
    InformationBottleneck,
    gaussian_divergence,
)
from fedcel.losses.defences.imported import ImportedDefence
from fedcel.losses.defences.learned_noise import LearnedNoise
from fedcel.losses.defences.nopeek import NoPeek
from fedcel.losses.defences.rival import Bottleneck, Dropout, NoDefence, Noise, Rival
from fedcel.losses.defences.transform import (
    TRANSFORM_TESTS,
    Transform,
    TransformCase,
)
from fedcel.losses.one_client import DefenceTerm
from fedcel.losses.protocol import Defence

__all__ = [
    "CEB",
    "TRANSFORM_TESTS",
    "VIB",
    "Adversarial",
    "Bottleneck",
    "Defence",
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
    "gaussian_divergence",
]
