"""A malicious server: hand out an encoder that was trained to leak."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedcel.attacks.decoder_networks import build_decoder_network
from fedcel.attacks.inversion_training import minimise_loss
from fedcel.data import Images
from fedcel.nets import SplitNet, copy_module

TRAINING_EPOCHS = 200
SERVICE_WEIGHT = 0.02  # of the cross-entropy in nats beside the MSE of pixels in [0, 1]


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
