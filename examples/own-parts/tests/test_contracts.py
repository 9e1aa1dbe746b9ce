"""Each part holds the contract of its kind."""

import math

import torch
from own_parts.attack import Neighbours
from own_parts.cel import build_deviations
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
    check_attack,
    check_cel,
    check_defence,
    check_delta_strategy,
    check_mechanism,
    check_net,
    check_sampler,
    check_source,
    check_transform,
)


def test_net() -> None:
    """A net is named: it is built as a run does."""
    check_net("own_parts.nets:build_net")


def test_source() -> None:
    """Four holders, by direction."""
    source = ImportedSource(source="own_parts.data:read_rotated_digits")
    check_source(DataSettings(source=source))


def test_cel() -> None:
    """For 4 features, 3 classes."""
    check_cel(lambda: build_deviations(NoCEL(), lambda v: v, 4, 3))


def test_defence_loss() -> None:
    """For images (1, 4, 4) and 4 features."""
    s = {"defence.name": "own_parts.defence_loss:Uncorrelated", "net.features": 4}
    settings = parse_settings({**s, "defence.strength": 1.0})
    check_defence(lambda: Uncorrelated(settings, (1, 4, 4)))


def test_defence() -> None:
    """For 12 features, of which 5 are kept."""
    s = {"defence.name": "own_parts.defence:Largest", "defence.strength": 5, "net.features": 12}
    check_transform(lambda: Largest(parse_settings(s), (1, 4, 4)))


def test_sampler() -> None:
    """A sampler is named: it goes through the real local update."""
    check_sampler("own_parts.sampler:Hamiltonian")


def test_strategy() -> None:
    """Made as the ServerApp makes it."""
    check_delta_strategy(Wary)


def test_attack() -> None:
    """It beats the mean image by less than attacks that learn: .6 of its MSE, not .25."""
    check_attack(Neighbours, share=0.6)


def test_mechanism() -> None:
    """Sets of two of three classes; at epsilon 1 the best size would be one."""
    check_mechanism(lambda: SubsetSelection(1.0, 3, 2))


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
