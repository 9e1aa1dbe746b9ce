"""Cost on the device, against counts by hand."""

import torch

from fedcel.nets import Cnn, Mlp
from fedcel.nets.build_net import build_net
from fedcel.nets.inference_cost import InferenceCost, measure_cost
from tests.fedcel.seeded import seeded


def test_mlp_by_hand() -> None:
    """64 -> 128 -> 32: two operations a weight, weights and biases, four bytes a feature."""
    net = build_net(Mlp(width=128, features=32), (1, 8, 8), 10, seeded(0))
    weights = 64 * 128 + 128 * 32
    wanted = InferenceCost(2 * weights, weights + 128 + 32, 4 * 32)
    assert measure_cost(net, torch.rand(1, 8, 8, generator=seeded(1))) == wanted


def test_convolutions_by_hand() -> None:
    """Per output pixel 2 x 9 x channels in x channels out, then the linear layers."""
    settings = Cnn(width=16, features=8)
    net = build_net(settings, (1, 8, 8), 10, seeded(0))
    cost = measure_cost(net, torch.zeros(1, 8, 8))
    convolutions = 64 * 9 * 1 * 16 + 16 * 9 * 16 * 32
    linear = 32 * 2 * 2 * 16 + 16 * 8
    assert cost.flops == 2 * (convolutions + linear)
    assert cost.bytes == 32
