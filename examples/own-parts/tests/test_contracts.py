"""Each part holds the contract of its kind."""

import math

import torch
from own_parts.attack import Neighbours
from own_parts.cel import Deviations, build_deviations
from own_parts.defence import Largest
from own_parts.defence_loss import Uncorrelated
from own_parts.mechanism import SubsetSelection, build_subset_selection
from own_parts.strategy import Wary

from fedcel import parse_settings
from fedcel.data import ImportedSource
from fedcel.losses.cel import NoCEL
from fedcel.privacy import LabelOnlyAnswers
from fedcel.settings import DataSettings
from fedcel.testing import (
    AttackContract,
    CELContract,
    DefenceContract,
    MechanismContract,
    NetContract,
    SamplerContract,
    SourceContract,
    StrategyContract,
    TransformContract,
)


class TestNet(NetContract):
    """A net is named: the suite builds it as a run does."""

    name = "own_parts.nets:build_net"


class TestSource(SourceContract):
    """Four holders, by direction."""

    def settings(self) -> DataSettings:
        """Return the settings that name the source."""
        return DataSettings(source=ImportedSource(source="own_parts.data:read_rotated_digits"))


class TestCEL(CELContract):
    """For 4 features, 3 classes."""

    def build(self) -> Deviations:
        """Return the loss."""
        return build_deviations(NoCEL(), lambda v: v, 4, 3)


class TestDefenceLoss(DefenceContract):
    """For images (1, 4, 4) and 4 features."""

    def build(self) -> Uncorrelated:
        """Return the defence."""
        s = {"defence.name": "own_parts.defence_loss:Uncorrelated", "net.features": 4}
        return Uncorrelated(parse_settings({**s, "defence.strength": 1.0}), (1, 4, 4))


class TestDefence(TransformContract):
    """For 12 features, of which 5 are kept."""

    def build(self) -> Largest:
        """Return the transform."""
        s = {"defence.name": "own_parts.defence:Largest", "defence.strength": 5, "net.features": 12}
        return Largest(parse_settings(s), (1, 4, 4))


class TestSampler(SamplerContract):
    """A sampler is named: the suite goes through the real local update."""

    name = "own_parts.sampler:Hamiltonian"


class TestStrategy(StrategyContract):
    """Made as the ServerApp makes it."""

    def build(self, settings, state, shapes, cut) -> Wary:
        """Return the strategy."""
        return Wary(settings, state, shapes, cut)


class TestAttack(AttackContract):
    """It beats the mean image by less than attacks that learn: .6 of its MSE, not .25."""

    share = 0.6

    def build(self) -> Neighbours:
        """Return the attack."""
        return Neighbours()


class TestMechanism(MechanismContract):
    """Sets of two of three classes; at epsilon 1 the best size would be one."""

    def build(self) -> SubsetSelection:
        """Return the mechanism."""
        return SubsetSelection(1.0, 3, 2)


def test_a_set_holds_the_top_class_as_often_as_said() -> None:
    """2 e / (2 e + 8) of 10 000 times at epsilon 1, ten classes, three members; within 2 %."""
    mechanism = build_subset_selection(LabelOnlyAnswers(epsilon=1.0), 10)
    assert mechanism.size == 3
    logits = torch.zeros(10_000, 10)
    logits[:, 7] = 1.0
    sets = mechanism.answer(logits) > 0
    assert (sets.sum(1) == 3).all()
    expected = 3 * math.e / (3 * math.e + 7)
    assert abs(sets[:, 7].double().mean() - expected) < 0.02
