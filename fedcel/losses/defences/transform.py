"""A user's defence that changes what is sent: the last layer of the encoder, before the noise."""

import torch
from torch import Tensor, nn

from fedcel.errors import PluginError
from fedcel.losses.defences.protocol import Transform
from fedcel.nets import SplitNet

PROBES = 4  # images on which a transform is tried


class TransformedEncoder(nn.Module):
    """The transform as a layer without parameters."""

    def __init__(self, transform: Transform) -> None:
        super().__init__()
        self.what = transform

    def forward(self, z: Tensor) -> Tensor:
        """Return what is sent in place of z (B, D)."""
        return self.what.transform(z)


def append_transform(
    transform: Transform, net: SplitNet, shape: tuple[int, ...], name: str
) -> SplitNet:
    """Return the net with an encoder that ends in the transform.

    Whatever knows the encoder knows it: training, the service, every attack, Bayes' rule. `shape`
    is that of an image, `name` the setting. PluginError where codes of random images come out with
    another shape, not finite, differently in another batch or a second time, or without a gradient.
    """
    stream = torch.Generator().manual_seed(0)
    z = net.encode(torch.rand(PROBES, *shape, generator=stream)).detach().requires_grad_()
    whole = transform.transform(z)
    if whole.shape != z.shape or whole.dtype != z.dtype or not whole.isfinite().all():
        raise PluginError(
            f"defence.name {name!r} turned {tuple(z.shape)} of {z.dtype} into "
            f"{tuple(whole.shape)} of {whole.dtype}, must be as many finite values of that type"
        )
    single = torch.cat([transform.transform(row) for row in torch.split(z, 1)])
    if not torch.allclose(single, whole, atol=1e-5):
        raise PluginError(
            f"defence.name {name!r}: a code is not changed the same way again, or alone; a "
            "transform sees one code at a time and draws nothing: the cut adds the noise"
        )
    weights = torch.randn(whole.shape, generator=stream)
    if not whole.requires_grad or not torch.autograd.grad((whole * weights).sum(), z)[0].any():
        raise PluginError(
            f"defence.name {name!r} lets no gradient through, so no encoder could learn; return "
            "z + (changed - z).detach()"
        )
    encoder = nn.Sequential(net.encoder, TransformedEncoder(transform))
    return SplitNet(encoder, net.head, net.cut, net.features)
