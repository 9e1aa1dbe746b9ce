"""UnSplit, where it works: a shallow convolution."""

from functools import cache

import pytest
import torch
from torch import nn

from fedcel.attacks.attack import Attack
from fedcel.attacks.unknown_encoder import UnSplit
from fedcel.leakage import Observation, SmashedData
from fedcel.nets.build_net import initialise_parameters
from fedcel.nets.cut import Cut
from fedcel.nets.split_net import SplitNet
from fedcel.testing.attacks import AttackContract, LinearObservation, load_digit_targets


def stream(seed: int = 0) -> torch.Generator:
    """Return a generator."""
    return torch.Generator().manual_seed(seed)


@cache
def convolution() -> SmashedData:
    """Return the messages of one convolution, without noise."""
    net = SplitNet(
        nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.Flatten()), nn.Identity(), Cut(0.0), 512
    )
    initialise_parameters(net, stream(3))
    return SmashedData(net)


class TestUnSplit(AttackContract):
    """The built-in one."""

    targets = 20
    budget = 0.7
    share = 0.5

    def build(self) -> Attack:
        """Return it."""
        return UnSplit()

    def observation(self) -> Observation:
        """Return it."""
        return convolution()


class Still(TestUnSplit):
    """A search that never moves."""

    budget = 0.1

    def build(self) -> Attack:
        """Return it."""
        return UnSplit(rate=0.0)


def test_contract_catches_a_search_that_stands_still() -> None:
    """The mean image, which it starts from, is no attack."""
    with pytest.raises(AssertionError):
        Still().test_far_better_than_the_mean_image()


def test_needs_the_layers() -> None:
    """Refused by name without them."""
    with pytest.raises(ValueError, match="must grant 'architecture'"):
        UnSplit().reconstruct(
            LinearObservation("smashed-data"),
            load_digit_targets()[0],
            torch.zeros(1, 32),
            1.0,
            stream(),
        )
