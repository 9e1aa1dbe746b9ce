"""A small net without a defence, for attacks to work on."""

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedcel.attacks import compute_anchors
from fedcel.data import Digits, Images, read_source
from fedcel.nets import Cut, SplitNet, initialise_parameters
from fedcel.testing.attacks import FEATURES, KNOWN, TARGETS
from tests.fedcel.seeded import seeded

EPOCHS = 12


@cache
def train_undefended(sigma: float = 0.1, layers: int = 2) -> SplitNet:
    """Return a small net for digits, trained without a defence; never write to it.

    Of 32 features, its encoder with one or two layers. It learned from digits that are neither the
    attacker's nor targets.
    """
    x, y = (part[KNOWN + TARGETS :] for part in read_source(Digits()).train)
    stream = seeded(7)
    hidden = [nn.Linear(64, 64), nn.ReLU()] if layers == 2 else []
    encoder = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(64, FEATURES))
    net = SplitNet(encoder, nn.Linear(FEATURES, 10), Cut(sigma), FEATURES)
    initialise_parameters(net, stream)
    adam = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(EPOCHS):
        for part in torch.split(torch.randperm(len(y), generator=stream), 64):
            adam.zero_grad()
            smashed = net.add_noise(net.encode(x[part]), stream)
            torch.autograd.backward(cross_entropy(net.answer(smashed), y[part]))
            adam.step()
    return net


def mean_image(labels: Tensor, population: Images) -> Tensor:
    """Return the mean of all images for each label."""
    return compute_anchors([population]).mean.expand(len(labels), -1, -1, -1)


def class_means(labels: Tensor, population: Images) -> Tensor:
    """Return the mean of each label's class."""
    return compute_anchors([population]).guess(labels)
