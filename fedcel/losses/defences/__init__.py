"""Rival defences of smashed data: what they make of the net, the cut, the loss, what is sent."""

from fedcel.lazy import list_names as _list_names
from fedcel.losses.defences.adversarial import Adversarial as Adversarial
from fedcel.losses.defences.bottleneck import CEB as CEB
from fedcel.losses.defences.bottleneck import VIB as VIB
from fedcel.losses.defences.bottleneck import InformationBottleneck as InformationBottleneck
from fedcel.losses.defences.bottleneck import gaussian_divergence as gaussian_divergence
from fedcel.losses.defences.feature_noise import FisherNoise as FisherNoise
from fedcel.losses.defences.feature_noise import LearnedNoise as LearnedNoise
from fedcel.losses.defences.nopeek import NoPeek as NoPeek
from fedcel.losses.defences.rival import Bottleneck as Bottleneck
from fedcel.losses.defences.rival import Dropout as Dropout
from fedcel.losses.defences.rival import NoDefence as NoDefence
from fedcel.losses.defences.rival import Noise as Noise
from fedcel.losses.defences.rival import Rival as Rival
from fedcel.losses.defences.transform import TRANSFORM_TESTS as TRANSFORM_TESTS
from fedcel.losses.defences.transform import Transform as Transform
from fedcel.losses.defences.transform import TransformCase as TransformCase

__all__ = _list_names(globals())
