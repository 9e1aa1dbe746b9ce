"""An encoder that a malicious server trained to send images, for trials of a guard on a node."""

import torch
from torch.nn.functional import cross_entropy

from fedcel.attacks import build_decoder_network
from fedcel.data import Images
from fedcel.nets import SplitNet, copy_module

TRAINING_EPOCHS, BATCH_SIZE, LEARNING_RATE = 200, 64, 1e-3
SERVICE_WEIGHT = 0.02  # of the cross-entropy in nats next to the MSE of pixels in [0, 1]


def hijack_encoder(
    net: SplitNet, auxiliary: Images, generator: torch.Generator, budget: float = 1.0
) -> SplitNet:
    """Train an encoder that sends images instead of features; the honest net is left as it is.

    In the source the server steers the client's encoder through gradients. In a federation it
    simply sends the parameters, which is easier and leaks more: no client-side training stands
    between. Encoder, head and a decoder that is thrown away learn together, through the cut's own
    noise: MSE of the decoded message + `SERVICE_WEIGHT` times cross-entropy. The head still serves,
    so that accuracy does not give the encoder away; measuring its leak on the client's own images
    does. `budget` multiplies the epochs.

    References:
        Pasquini et al., CCS 2021 (feature-space hijacking).
    """
    hijacked = copy_module(net)
    x, y = auxiliary
    with torch.no_grad():
        messages = hijacked.add_noise(hijacked.encode(x), generator)
    decoder = build_decoder_network(messages, tuple(x.shape[1:]), generator)
    parameters = [*hijacked.parameters(), *decoder.parameters()]
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    adam = torch.optim.Adam(trainable, LEARNING_RATE)
    for _ in range(max(1, round(TRAINING_EPOCHS * budget))):
        for batch in torch.split(torch.randperm(len(y), generator=generator), BATCH_SIZE):
            message = hijacked.add_noise(hijacked.encode(x[batch]), generator)
            error = (decoder(message) - x[batch]).square().mean()
            loss = error + SERVICE_WEIGHT * cross_entropy(hijacked.answer(message), y[batch])
            adam.zero_grad()
            torch.autograd.backward(loss, inputs=trainable)
            adam.step()
    return hijacked
