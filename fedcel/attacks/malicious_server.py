"""A malicious server: hand out a net that makes clients leak."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedcel.errors import NetError
from fedcel.nets import SplitNet, copy_module


def set_trap_weights(
    net: SplitNet, images: Float[Tensor, "N C H W"], batch: int, generator: torch.Generator
) -> SplitNet:
    """Make each unit of the first layer active for about one image of a batch.

    Such a unit's slope is that image, which `FirstLayer` reads off an upload. Each unit looks in a
    random direction, and its bias lets the share 1/batch of the server's own images through.

    Args:
        net: The honest net; it is left as it is.
        images: The server's own images, (N, C, H, W) in [0, 1].
        batch: Images behind an upload, 1 or more.
        generator: Draws the directions.

    Returns:
        A net of the same layers and cut, all other parameters as they were.

    Raises:
        NetError: The first layer is no dense layer of the pixels.

    References:
        Boenisch et al., EuroS&P 2023, section 5 (trap weights); biases by quantiles: Fowl et al.,
        ICLR 2022, section 3.
    """
    trapped = copy_module(net)
    pixels = images.flatten(1)
    first = next(
        layer
        for layer in trapped.encoder.modules()
        if next(layer.parameters(recurse=False), None) is not None
    )
    if not isinstance(first, nn.Linear) or first.in_features != pixels.shape[1]:
        raise NetError(
            f"the first layer is {first}, must be a dense layer of {pixels.shape[1]} pixels; trap "
            "weights fit no other"
        )
    with torch.no_grad():
        directions = torch.randn(first.weight.shape, generator=generator)
        scores = pixels @ directions.T
        spread = scores.std(0).clamp_min(torch.finfo().eps)
        threshold = (scores / spread).quantile(1 - 1 / max(2, batch), dim=0)
        first.weight.copy_(directions / spread[:, None])
        first.bias.copy_(-threshold)
    return trapped
