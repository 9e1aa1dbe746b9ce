"""What one inference costs the device: operations, parameters, bytes."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.nets.split_net import SplitNet

BYTES = 4  # of one value, float32 on the wire


class Cost(NamedTuple):
    """The device's side of one inference."""

    flops: int
    """Of matrix products and convolutions: a multiplication and an addition count 2."""
    parameters: int
    """Of the encoder."""
    bytes: int
    """Sent for one image, without the frame of the protocol that carries them."""


def measure_cost(net: SplitNet, image: Float[Tensor, "C H W"]) -> Cost:
    """Return what encoding one image costs, counted by running it once, and what is sent.

    Activations, normalisation and noise are not counted: they are small beside the rest.
    """
    from torch.utils.flop_counter import FlopCounterMode  # brings a part of the compiler

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        z = net.encode(image[None])
    parameters = sum(p.numel() for p in net.encoder.parameters())
    return Cost(counter.get_total_flops(), parameters, BYTES * z.numel())
