"""A net: GELU, features bounded smoothly, a head that normalises what it receives."""

from math import prod

from torch import Tensor, nn

from fedcel.nets import ImportedNet


class SoftBound(nn.Module):
    """z / sqrt(1 + mean z^2): always shorter than sqrt(D), and never flat."""

    def forward(self, z: Tensor) -> Tensor:
        """Return z (B, D) with |z|^2 < D."""
        return z / (1 + z.square().mean(1, keepdim=True)).sqrt()


def build_net(
    shape: tuple[int, ...], classes: int, net: ImportedNet
) -> tuple[nn.Module, nn.Module]:
    """Return (encoder, head) for images of `shape` (C, H, W)."""
    encoder = nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(shape), net.width),
        nn.GELU(),
        nn.Linear(net.width, net.features),
        SoftBound(),
    )
    return encoder, nn.Sequential(nn.LayerNorm(net.features), nn.Linear(net.features, classes))
