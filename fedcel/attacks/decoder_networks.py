"""Decoder networks: from an observed vector to an image in [0, 1]."""

from math import prod
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedcel.nets import initialise_parameters

MAX_FLAT_PIXELS = 256  # a channel, up to which a plain network does
HIDDEN_UNITS = 256


class DecoderSize(NamedTuple):
    """Residual blocks of the convolutional decoder, at a quarter of the sides, and their width."""

    blocks: int
    channels: int


SMALL_DECODER = DecoderSize(2, 32)
LARGE_DECODER = DecoderSize(8, 64)
"""The decoder of Xia et al., CVPR 2025."""


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions around which the input is carried; He et al., CVPR 2016, figure 2."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, x: Float[Tensor, "B K h w"]) -> Float[Tensor, "B K h w"]:
        """Return relu(x + body(x))."""
        return torch.relu(x + self.body(x))


class Standardisation(nn.Module):
    """Subtract the mean and divide by the sd of what the attacker saw in training."""

    def __init__(self, examples: Float[Tensor, "N F"]) -> None:
        super().__init__()
        sd, mean = torch.std_mean(examples, 0, correction=0)
        self.mean, self.sd = nn.Buffer(mean), nn.Buffer(sd.where(sd > 0, 1.0))  # dead stays 0

    def forward(self, x: Float[Tensor, "B F"]) -> Float[Tensor, "B F"]:
        """Return x in units of the training standard deviation."""
        return (x - self.mean) / self.sd


def is_flat(shape: tuple[int, ...]) -> bool:
    """Say whether images (C, H, W) are for the plain network: small, or not divisible by 4."""
    height, width = shape[1:]
    return height * width <= MAX_FLAT_PIXELS or bool(height % 4 or width % 4)


def build_decoder_network(
    examples: Float[Tensor, "N F"],
    shape: tuple[int, ...],
    generator: torch.Generator,
    size: DecoderSize = SMALL_DECODER,
) -> nn.Module:
    """Return an untrained decoder for vectors like `examples` and images `shape` (C, H, W).

    Small images: F-256-256-pixels, whatever the `size`. Others: linear to (channels, H/4, W/4),
    residual blocks, 2 transposed convolutions, after the inversion networks of Xia et al., CVPR
    2025.
    """
    features = examples.shape[1]
    layers = (
        build_flat_layers(features, shape)
        if is_flat(shape)
        else build_convolution_layers(features, shape, size)
    )
    net = nn.Sequential(Standardisation(examples), *layers, nn.Sigmoid())
    initialise_parameters(net, generator)
    for layer in net.modules():
        if isinstance(layer, nn.ConvTranspose2d):
            bound = layer.weight[0].numel() ** -0.5
            for parameter in layer.parameters():
                nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return net


def build_flat_layers(features: int, shape: tuple[int, ...]) -> list[nn.Module]:
    """Return the layers of the plain network."""
    return [
        nn.Linear(features, HIDDEN_UNITS),
        nn.ReLU(),
        nn.Linear(HIDDEN_UNITS, HIDDEN_UNITS),
        nn.ReLU(),
        nn.Linear(HIDDEN_UNITS, prod(shape)),
        nn.Unflatten(1, shape),
    ]


def build_convolution_layers(
    features: int, shape: tuple[int, ...], size: DecoderSize
) -> list[nn.Module]:
    """Return the layers of the network for images whose sides divide by 4."""
    channels, height, width = shape
    quarter = (size.channels, height // 4, width // 4)
    return [
        nn.Linear(features, prod(quarter)),
        nn.Unflatten(1, quarter),
        *(ResidualBlock(size.channels) for _ in range(size.blocks)),
        nn.ConvTranspose2d(size.channels, size.channels, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(size.channels, channels, 4, stride=2, padding=1),
    ]
