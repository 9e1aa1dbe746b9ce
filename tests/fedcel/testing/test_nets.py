"""Every built-in net holds the contract of nets."""

from fedcel.nets import Strided, Vgg11
from fedcel.settings import NetSettings
from fedcel.testing.suites import NetContract


class TestMLP(NetContract):
    """Small images."""

    name = "mlp"


class TestCNN(NetContract):
    """Colour images of 32 pixels a side."""

    name = "cnn"
    shape = (3, 32, 32)


class TestStrided(NetContract):
    """Strides in the place of pools."""

    name = "strided"
    shape = (1, 28, 28)

    def settings(self) -> NetSettings:
        """Return the settings of a net of another size."""
        return Strided(features=12, width=16)


class TestVGG(NetContract):
    """The smallest that fits: 64 positions at the cut, one channel."""

    name = "vgg11"
    shape = (3, 32, 32)

    def settings(self) -> NetSettings:
        """Return the settings of a narrow VGG11."""
        return Vgg11(features=64, width=16)


def test_every_net_is_here() -> None:
    """None is left out."""
    tested = {kind.name for kind in NetContract.__subclasses__()}
    assert tested == {*NetSettings.list_names()}
