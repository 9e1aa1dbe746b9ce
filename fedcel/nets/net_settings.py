"""Split networks: one class a kind, whose fields are its keys and which builds the net."""

from itertools import pairwise
from math import prod
from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from fedcel.errors import NetError
from fedcel.nets.cut import NoiseScale
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
        description="Values of the smashed data, D; 0, of a cut model alone: those of its layer.",
    )
    seed: int = Field(
        0,
        ge=0,
        description="Additional seed of the initial parameters, for members of an ensemble.",
    )
    noise: float = Field(
        0.3, ge=0, allow_inf_nan=False, description="Sigma of the Gaussian noise at the cut."
    )
    noise_shape: Literal["auto", "one", "feature", "image"] = Field(
        "auto",
        description="Noise sd: one for all features, learned per feature, or per image too; "
        "auto: by defence.",
    )

    def build(self, shape: tuple[int, ...], classes: int) -> Halves:
        """Build encoder and head for images of a shape (C, H, W)."""
        raise NotImplementedError

    def build_noise_scale(self, features: int) -> NoiseScale | None:
        """Build what says how much noise each feature gets; None where nothing is learned."""
        if self.noise_shape not in ("feature", "image"):
            return None
        return NoiseScale(features, is_of_image=self.noise_shape == "image")


class WideNet(NetSettings):
    """Net whose layers have a width of the user's choice."""

    width: int = Field(128, ge=1, description="Hidden width; 'vgg11': channels of its 2nd block.")


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
        rows, columns = self._measure_map(shape)
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

    def _measure_map(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return height and width at the cut; NetError where images or D do not fit."""
        _, height, width = shape
        if height % 8 or width % 8:
            raise NetError(
                f"images are {height}x{width}, sides must divide by 8; set data.size to 32"
            )
        if self.width % 16:
            raise NetError(f"net.width is {self.width}, must be a multiple of 16; try 64 or 128")
        rows, columns = height >> CUT_AFTER, width >> CUT_AFTER
        if self.features % (rows * columns):
            raise NetError(
                f"net.features is {self.features}, must be a multiple of {rows * columns}, the "
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
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.GroupNorm(width // 8, width)]
            layers += [nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2, ceil_mode=True))
    return layers
