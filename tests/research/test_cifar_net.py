"""Nets of CIFAR-10 cut at three depths: what is sent, and that the trained net stays what it is."""

from typing import cast

import pytest
import torch
from torch import nn

import cifar_net


@pytest.mark.parametrize(("depth", "values"), [("shallow", 8192), ("deep", 64)])
def test_a_limited_cut_changes_no_answer_below_its_limit(depth: str, values: int) -> None:
    """Same parameters by name, same answers; what is sent is in [0, 1] also above the limit."""
    wide = cifar_net.make_bounded_net().eval()
    net = {"shallow": cifar_net.make_shallow_net, "deep": cifar_net.make_deep_net}[depth]().eval()
    net.load_state_dict(wide.state_dict())
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    end = int(cifar_net.CUTS[depth]) + 1
    sent, before = net[:end](images), wide[:end](images)
    assert sent[0].numel() == values and before.max() <= cifar_net.LIMITS[depth]
    torch.testing.assert_close(net(images), wide(images))
    limit = cast(nn.Sequential, net[end - 1])[-1]
    assert limit(1e6 * before).max() == 1
