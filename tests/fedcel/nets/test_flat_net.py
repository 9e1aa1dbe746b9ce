"""Flat parameters."""

import numpy as np
import pytest
import torch
from torch import nn

from fedcel.errors import NetError
from fedcel.nets.cut import Cut
from fedcel.nets.flat_net import FlatNet, to_arrays, to_vector
from fedcel.nets.split_net import SplitNet, build_net
from fedcel.seeding import make_generator
from fedcel.settings import NetSettings


def test_vector_and_gradient_are_the_nets_own() -> None:
    """A write to the vector is seen by the net, a backward pass by the gradient."""
    flat = FlatNet(
        build_net(NetSettings(features=4, width=5), (1, 2, 2), 3, make_generator(0, "net"))
    )
    flat.load(torch.zeros_like(flat.vector))
    x = torch.rand(2, 1, 2, 2)
    assert not flat.net.answer(flat.net.encode(x)).any()
    flat.load(torch.full_like(flat.vector, 0.1))
    flat.net.answer(flat.net.encode(x)).square().sum().backward()
    by_hand = torch.cat([p.grad.flatten() for p in flat.net.parameters() if p.grad is not None])
    assert torch.equal(flat.gradient, by_hand)
    assert flat.gradient.any()
    assert flat.cut == sum(p.numel() for p in flat.net.encoder.parameters())


def test_arrays_round_trip_and_are_copies() -> None:
    """What travels does not change when the net does."""
    vector = torch.arange(10.0)
    arrays = to_arrays(vector, [(2, 3), (4,)])
    assert [array.shape for array in arrays] == [(2, 3), (4,)]
    vector.zero_()
    np.testing.assert_array_equal(arrays[1], [6, 7, 8, 9])
    assert torch.equal(to_vector(arrays), torch.arange(10.0))


def test_a_net_without_parameters_is_refused() -> None:
    """There is nothing to average."""
    with pytest.raises(NetError, match="needs parameters"):
        FlatNet(SplitNet(nn.Flatten(), nn.Identity(), Cut(0.1), 4))
