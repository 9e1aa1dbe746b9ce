"""A malicious server: hand out a net that makes clients leak."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedcel.attacks.decoder import build_decoder_network, minimise_loss
from fedcel.data import Images
from fedcel.errors import NetError
from fedcel.nets import SplitNet, copy_module

TRAINING_EPOCHS = 200
SERVICE_WEIGHT = 0.02  # of the cross-entropy in nats next to the MSE of pixels in [0, 1]


def hijack_encoder(
    net: SplitNet, auxiliary: Images, generator: torch.Generator, budget: float = 1.0
) -> SplitNet:
    """Train an encoder that sends images instead of features, to see whether clients notice.

    In the source the server steers the client's encoder through gradients. In a federation it
    simply sends the parameters, which is easier and leaks more: no client-side training stands
    between. Encoder, head and a decoder that is thrown away learn together, through the cut's own
    noise: MSE of the decoded message + `SERVICE_WEIGHT` times cross-entropy. The head still serves,
    so that accuracy does not give the encoder away; measuring its leak on the client's own images
    does.

    Args:
        net: The honest net; it is left as it is.
        auxiliary: The server's images and labels.
        generator: Decides all chances.
        budget: Multiplies the epochs, above 0.

    Returns:
        A net of the same layers and cut.

    References:
        Pasquini et al., CCS 2021 (feature-space hijacking).
    """
    hijacked = copy_module(net)
    x, y = auxiliary
    with torch.no_grad():
        messages = hijacked.add_noise(hijacked.encode(x), generator)
    decoder = build_decoder_network(messages, tuple(x.shape[1:]), generator)

    def batch_loss(batch: Int[Tensor, " b"]) -> Float[Tensor, ""]:
        message = hijacked.add_noise(hijacked.encode(x[batch]), generator)
        error: Tensor = (decoder(message) - x[batch]).square().mean()
        return error + SERVICE_WEIGHT * cross_entropy(hijacked.answer(message), y[batch])

    minimise_loss(
        [*hijacked.parameters(), *decoder.parameters()],
        batch_loss,
        len(y),
        max(1, round(TRAINING_EPOCHS * budget)),
        generator=generator,
    )
    return hijacked


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
