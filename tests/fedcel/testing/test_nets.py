"""Every built-in net holds the contract of nets."""

import pytest
import torch

from fedcel.nets import NET_TESTS, Cut, NetCase, SplitNet, build_net
from fedcel.plugins import hold_contract
from fedcel.settings import NetSettings
from fedcel.testing import check_net

SHAPES = {
    "mlp": (1, 8, 8),
    "cnn": (3, 32, 32),
    "strided": (1, 28, 28),
    "vgg11": (3, 32, 32),
    "resnet": (3, 32, 32),
}


def test_every_net_is_here() -> None:
    """None is left out."""
    libraries = {"torchvision:NAME", "timm:NAME"}
    assert SHAPES.keys() | libraries == {*NetSettings.list_names()}


@pytest.mark.parametrize("name", SHAPES)
def test_a_net_holds_its_contract(name: str) -> None:
    """The smallest VGG11 has 64 positions at the cut, the smallest ResNet 16: one channel each."""
    smallest = {"vgg11": {"features": 64}, "resnet": {"features": 16, "width": 32}}
    check_net(name, shape=SHAPES[name], **smallest.get(name, {"features": 12}))


def test_a_library_net_holds_the_contract() -> None:
    """A model of torchvision, cut at a layer of 16 positions, three channels sent."""
    keys = {"name": "torchvision:shufflenet_v2_x0_5", "cut": "stage2", "features": 48}
    settings = NetSettings.model_validate(keys)

    def build(seed: int = 1) -> SplitNet:
        return build_net(settings, (3, 32, 32), 3, torch.Generator().manual_seed(seed), cut=Cut())

    hold_contract(NET_TESTS, NetCase(build, (3, 32, 32), 3, True))
