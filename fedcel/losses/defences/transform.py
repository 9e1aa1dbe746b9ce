"""A user's defence that changes what is sent: the last layer of the encoder, before the noise."""

import torch
from torch import Tensor, nn

from fedcel.errors import PluginError
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
    z = net.encode(torch.rand(TRIAL_IMAGES, *shape, generator=stream)).detach().requires_grad_()
    changed = transform.transform(z)
    if changed.shape != z.shape or changed.dtype != z.dtype or not changed.isfinite().all():
        raise PluginError(
            f"defence.name {name!r} turned {tuple(z.shape)} of {z.dtype} into "
            f"{tuple(changed.shape)} of {changed.dtype}, must be as many finite values of that type"
        )
    row_by_row = torch.cat([transform.transform(row) for row in torch.split(z, 1)])
    if not torch.allclose(row_by_row, changed, atol=1e-5):
        raise PluginError(
            f"defence.name {name!r}: the features of an image are not changed the same way again, "
            "or alone; a transform sees one image's features at a time and draws nothing: the cut "
            "adds the noise"
        )
    weights = torch.randn(changed.shape, generator=stream)
    if not changed.requires_grad or not torch.autograd.grad((changed * weights).sum(), z)[0].any():
        raise PluginError(
            f"defence.name {name!r} lets no gradient through, so no encoder could learn; return "
            "z + (changed - z).detach()"
        )
    encoder = nn.Sequential(net.encoder, TransformedEncoder(transform))
    return SplitNet(encoder, net.head, net.cut, net.features)
