"""Rival defences of smashed data: what they make of the net, the cut, the loss, what is sent."""

from fedcel.losses.defences.adversarial import Adversarial
from fedcel.losses.defences.build_defence import (
    apply_transform,
    build_cut,
    build_defence,
    defended_net_settings,
)
from fedcel.losses.defences.contract import (
    DEFENCE_CHECKS,
    TRANSFORM_CHECKS,
    DefenceCase,
    SentBatch,
    TransformCase,
)
from fedcel.losses.defences.nopeek import NoPeek
from fedcel.losses.defences.protocol import Defence, Transform
from fedcel.losses.defences.transform import append_transform

__all__ = [
    "DEFENCE_CHECKS",
    "TRANSFORM_CHECKS",
    "Adversarial",
    "Defence",
    "DefenceCase",
    "NoPeek",
    "SentBatch",
    "Transform",
    "TransformCase",
    "append_transform",
    "apply_transform",
    "build_cut",
    "build_defence",
    "defended_net_settings",
]
