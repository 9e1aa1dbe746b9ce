"""Split networks: one class a kind, whose fields are its keys and which builds the net."""

from itertools import pairwise
from math import prod
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from fedcel.errors import NetError
from fedcel.settings_table import Kind

POSITIONS = "positions"
"""Attribute of an encoder: rows times columns of each channel, where z holds channels."""
Halves = tuple[nn.Module, nn.Module]
"""Encoder and head."""


class NetSettings(Kind, table="net", selector="name"):
    """Split network."""

    has_positions: ClassVar[bool] = False
    """Whether z may hold channels of several positions each."""

    name: str = Field("mlp", description="Network: encoder and head.")
    features: int = Field(
        64,
        ge=1,
        description="Values of the smashed data, D; with net.cut also 0: those of the cut's layer.",
    )
    seed: int = Field(
        0,
        ge=0,
        description="Additional seed of the initial parameters, for members of an ensemble.",
    )
    noise: float = Field(
        0.3, ge=0, allow_inf_nan=False, description="Sigma of the Gaussian noise at the cut."
    )

    def build(self, shape: tuple[int, ...], classes: int) -> Halves:
        """Build encoder and head for images of a shape (C, H, W)."""
        raise NotImplementedError


class WideNet(NetSettings):
    """Net whose layers have a width of the user's choice."""

    width: int = Field(
        128,
        ge=1,
        description="Hidden width; 'vgg11': channels of its 2nd block; 'resnet': of its last.",
    )


class OwnNet(WideNet):
    """Net of this project: its features are in [0, 1], its head is linear."""

    def build_feature_layers(self, inputs: int) -> list[nn.Module]:
        """Build a hidden layer, the layer that makes D features, and their bound."""
        hidden, last = (nn.Linear(*pair) for pair in pairwise([inputs, self.width, self.features]))
        return [hidden, nn.ReLU(), last, nn.Sigmoid()]


class Mlp(OwnNet):
    """Encoder of one hidden layer for small images, and a linear head."""

    name: Literal["mlp"] = "mlp"

    def build(self, shape: tuple[int, ...], classes: int) -> Halves:
        """Build encoder and head."""
        encoder = nn.Sequential(nn.Flatten(), *self.build_feature_layers(prod(shape)))
        return encoder, nn.Linear(self.features, classes)


class Cnn(OwnNet):
    """Two convolutions with GroupNorm and pooling, then D features; for 28 or 32 pixels."""

    name: Literal["cnn"] = "cnn"

    def build(self, shape: tuple[int, ...], classes: int) -> Halves:
        """Build encoder and head; NetError where sides do not divide by 4."""
        channels, height, width = shape
        if height % 4 or width % 4:
            raise NetError(
                f"images are {height}x{width}; 'cnn' pools twice, sides must divide by 4"
            )
        encoder = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1),
            nn.GroupNorm(4, 16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.GroupNorm(8, 32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            *self.build_feature_layers(32 * height * width // 16),
        )
        return encoder, nn.Linear(self.features, classes)


class Strided(OwnNet):
    """Two convolutions of stride 2 with GroupNorm: an eighth of `cnn`'s time on a CPU."""

    name: Literal["strided"] = "strided"

    def build(self, shape: tuple[int, ...], classes: int) -> Halves:
        """Build encoder and head."""
        channels, height, width = shape
        encoder = nn.Sequential(
            nn.Conv2d(channels, 16, 5, stride=2, padding=2),
            nn.GroupNorm(4, 16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.GroupNorm(8, 32),
            nn.ReLU(),
            nn.Flatten(),
            *self.build_feature_layers(32 * -(-height // 4) * -(-width // 4)),
        )
        return encoder, nn.Linear(self.features, classes)


class ResNet(OwnNet):
    """Residual net of 32x32 images or larger, cut before the last of its four blocks.

    He et al., ECCV 2016, figure 1b, with GroupNorm (8 channels a group) in place of BatchNorm, and
    a first convolution of stride 2. The second and third block halve the sides and double the
    channels; `net.width` is the channels of the third and fourth. A 1x1 convolution makes D =
    `net.features` values of the channels at the cut, another leads back. For 3x32x32 images, D =
    128, a width of 64 and 10 classes, the encoder has 77 752 parameters and takes 6.3 million
    operations an image, the head 75 338 and 2.4 million (a multiplication and an addition are two).
    """

    has_positions: ClassVar[bool] = True

    name: Literal["resnet"] = "resnet"

    def build(self, shape: tuple[int, ...], classes: int) -> Halves:
        """Build encoder and head; NetError where images or D do not fit."""
        rows, columns = measure_map(shape, halvings=3, features=self.features)
        if self.width % 32:
            raise NetError(f"net.width is {self.width}, must be a multiple of 32; try 64 or 128")
        channels, quarter = self.features // (rows * columns), self.width // 4
        encoder = nn.Sequential(
            Centring(),
            nn.Conv2d(shape[0], quarter, 3, stride=2, padding=1),
            ResidualBlock(quarter, quarter),
            ResidualBlock(quarter, 2 * quarter, stride=2),
            ResidualBlock(2 * quarter, self.width, stride=2),
            *normalise(self.width),
            nn.Conv2d(self.width, channels, 1),
            nn.GroupNorm(1, channels),
            nn.Flatten(),
            nn.Sigmoid(),
        )
        setattr(encoder, POSITIONS, rows * columns)
        head = nn.Sequential(
            nn.Unflatten(1, (channels, rows, columns)),
            Centring(),
            nn.Conv2d(channels, self.width, 1),
            ResidualBlock(self.width, self.width),
            *normalise(self.width),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(self.width, classes),
        )
        return encoder, head


class Centring(nn.Module):
    """Values in [0, 1] to values in [-2, 2]: without their mean, which is most of them."""

    def forward(self, x: Tensor) -> Tensor:
        """Return 4 x - 2."""
        return 4 * x - 2


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions, each after a GroupNorm and a ReLU, added to their input."""

    def __init__(self, inputs: int, outputs: int, *, stride: int = 1) -> None:
        super().__init__()
        self.activation = nn.Sequential(*normalise(inputs))
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            *normalise(outputs),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        )
        is_same = inputs == outputs and stride == 1
        self.shortcut = None if is_same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, outputs, H / stride, W / stride) for x (B, inputs, H, W)."""
        active = self.activation(x)
        passed = x if self.shortcut is None else self.shortcut(active)
        changed: Tensor = self.residual(active)
        return passed + changed


def normalise(channels: int) -> list[nn.Module]:
    """Return GroupNorm of 8 channels a group, and a ReLU."""
    return [nn.GroupNorm(channels // 8, channels), nn.ReLU()]


CUT_AFTER = 2
"""Blocks of VGG11 before the cut."""


class Vgg11(OwnNet):
    """VGG11's eight convolutions in five blocks.

    Simonyan and Zisserman, ICLR 2015, table 1, A, with GroupNorm (8 channels a group) where VGG11
    with normalisation has BatchNorm, and one mean over positions before the head. A 1x1 convolution
    makes D = `net.features` values of the channels at the cut, another leads back (Xia et al., CVPR
    2025, send 8 channels of 8x8 after two blocks of 32x32 images: D = 512). `net.width` is the
    width of the second block, 128 in VGG11. For 3x32x32 images, D = 512 and 10 classes the encoder
    has 77 064 parameters and takes 41 million operations an image, the head 9 156 234 and 264
    million (a multiplication and an addition are two).
    """

    has_positions: ClassVar[bool] = True

    name: Literal["vgg11"] = "vgg11"

    def build(self, shape: tuple[int, ...], classes: int) -> Halves:
        """Build encoder and head; NetError where images or D do not fit."""
        rows, columns = measure_map(shape, halvings=CUT_AFTER, features=self.features)
        if self.width % 16:
            raise NetError(f"net.width is {self.width}, must be a multiple of 16; try 64 or 128")
        channels = self.features // (rows * columns)
        half, wide = self.width // 2, 4 * self.width
        blocks = [[half], [self.width], [2 * self.width] * 2, [wide] * 2, [wide] * 2]
        before, after = blocks[:CUT_AFTER], blocks[CUT_AFTER:]
        encoder = nn.Sequential(
            *build_blocks(shape[0], before),
            nn.Conv2d(before[-1][-1], channels, 1),
            nn.Flatten(),
            nn.Sigmoid(),
        )
        setattr(encoder, POSITIONS, rows * columns)
        head = nn.Sequential(
            nn.Unflatten(1, (channels, rows, columns)),
            nn.Conv2d(channels, before[-1][-1], 1),
            *build_blocks(before[-1][-1], after),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(wide, classes),
        )
        return encoder, head


def measure_map(shape: tuple[int, ...], *, halvings: int, features: int) -> tuple[int, int]:
    """Return height and width at the cut; NetError where images or D do not fit.

    Args:
        shape: The shape of an image, (C, H, W).
        halvings: Layers before the cut that halve the sides.
        features: D.

    Returns:
        Rows and columns.

    Raises:
        NetError: A side does not divide by 8, or D by their product.
    """
    _, height, width = shape
    if height % 8 or width % 8:
        raise NetError(f"images are {height}x{width}, sides must divide by 8; set data.size to 32")
    rows, columns = height >> halvings, width >> halvings
    if features % (rows * columns):
        raise NetError(
            f"net.features is {features}, must be a multiple of {rows * columns}, the "
            f"{rows}x{columns} positions at the cut; {8 * rows * columns} sends 8 channels"
        )
    return rows, columns


def build_blocks(channels: int, blocks: list[list[int]]) -> list[nn.Module]:
    """Return blocks of 3x3 convolutions with GroupNorm and ReLU, each ended by a pool of 2.

    A side of 1 stays 1, an odd one is rounded up.
    """
    layers: list[nn.Module] = []
    for widths in blocks:
        for width in widths:
            layers += [nn.Conv2d(channels, width, 3, padding=1), *normalise(width)]
            channels = width
        layers.append(nn.MaxPool2d(2, ceil_mode=True))
    return layers
