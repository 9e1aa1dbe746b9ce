"""A user's defence that changes what is sent: the last layer of the encoder, before the noise."""

import torch
from torch import Tensor, nn

from fedcel import plugins
from fedcel.losses.defences.contract import TRANSFORM_CHECKS, TransformCase
from fedcel.losses.defences.protocol import Transform
from fedcel.nets import SplitNet

TRIAL_IMAGES = 4
"""Random images on which a transform is tried."""


class TransformedEncoder(nn.Module):
    """The transform as a layer without parameters."""

    def __init__(self, transform: Transform) -> None:
        super().__init__()
        self.transform = transform

    def forward(self, z: Tensor) -> Tensor:
        """Return what is sent in place of z (B, D)."""
        return self.transform.transform(z)


def append_transform(
    transform: Transform, net: SplitNet, shape: tuple[int, ...], name: str
) -> SplitNet:
    """Build a net whose encoder ends in a transform, after trying the transform.

    Whatever knows the encoder knows it: training, the service, every attack, Bayes' rule.

    Args:
        transform: The user's defence.
        net: The net without it.
        shape: An image's shape, (C, H, W).
        name: The setting `defence.name`, for messages.

    Returns:
        A net that shares its parameters with `net`.

    Raises:
        PluginError: Features of random images come out with another shape, not finite, differently
            in another batch or a second time, or without a gradient.
    """
    stream = torch.Generator().manual_seed(0)
    z = net.encode(torch.rand(TRIAL_IMAGES, *shape, generator=stream)).detach()
    part = plugins.PartName("defence.name", name, "TransformContract")
    plugins.check_contract(part, TRANSFORM_CHECKS, TransformCase(transform, z))
    encoder = nn.Sequential(net.encoder, TransformedEncoder(transform))
    return SplitNet(
        encoder,
        net.head,
        net.cut,
        net.features,
        noise_scale=net.noise_scale,
        positions=net.positions,
    )
