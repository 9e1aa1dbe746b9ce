"""A malicious server: hand out an encoder that was trained to leak.

After Pasquini et al., CCS 2021 (feature-space hijacking). There the server steers the client's
encoder through gradients; in a federation it simply sends the parameters, which is easier and
leaks more: no client-side training stands between. The head still serves, so that accuracy does
not give the encoder away; measuring its leak on the client's own images does.
"""

from copy import deepcopy

import torch
from torch.nn.functional import cross_entropy

from fedcel.attacks.decoder_networks import build_decoder_network
from fedcel.data import Images
from fedcel.nets import SplitNet

EPOCHS = 200
BATCH = 64
RATE = 1e-3
SERVES = 0.02  # weight of the cross-entropy in nats beside the MSE of pixels in [0, 1]


def hijack_encoder(
    net: SplitNet, auxiliary: Images, generator: torch.Generator, budget: float = 1.0
) -> SplitNet:
    """Return a net of the same layers and cut that sends images instead of features.

    Encoder, head and a decoder that is thrown away learn together on the server's images, through
    the cut's own noise: MSE of the decoded message + `SERVES` times cross-entropy. `net` is left
    as it is; `budget` multiplies the epochs.
    """
    mine = deepcopy(net)
    x, y = auxiliary
    with torch.no_grad():
        seen = mine.add_noise(mine.encode(x), generator)
    decoder = build_decoder_network(seen, tuple(x.shape[1:]), generator)
    parameters = [*mine.parameters(), *decoder.parameters()]
    adam = torch.optim.Adam(parameters, RATE)
    for _ in range(max(1, round(EPOCHS * budget))):
        for part in torch.split(torch.randperm(len(y), generator=generator), BATCH):
            message = mine.add_noise(mine.encode(x[part]), generator)
            error = (decoder(message) - x[part]).square().mean()
            adam.zero_grad()
            (error + SERVES * cross_entropy(mine.answer(message), y[part])).backward()
            adam.step()
    return mine
