"""Every built-in net holds the contract of nets."""

import pytest

from fedcel.settings import NetSettings
from fedcel.testing import check_net

SHAPES = {
    "mlp": (1, 8, 8),
    "cnn": (3, 32, 32),
    "strided": (1, 28, 28),
    "vgg11": (3, 32, 32),
}


def test_every_net_is_here() -> None:
    """None is left out."""
    assert SHAPES.keys() == {*NetSettings.list_names()}


@pytest.mark.parametrize("name", SHAPES)
def test_a_net_holds_its_contract(name: str) -> None:
    """The smallest VGG11 that fits has 64 positions at the cut, one channel."""
    check_net(name, shape=SHAPES[name], features=64 if name == "vgg11" else 12)
