"""Cost of one inference on the device: operations, parameters, bytes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.nets.split_net import SplitNet

BYTES_PER_VALUE = 4
"""Float32 on the wire."""


class InferenceCost(NamedTuple):
    """The device's side of one inference."""

    flops: int
    """Of matrix products and convolutions; a multiplication and an addition are two."""
    parameters: int
    """Of the encoder, frozen ones among them, and of the scale of its noise."""
    bytes: int
    """Sent for one image, without the frame of the protocol that carries them."""


def measure_cost(net: SplitNet, image: Float[Tensor, "C H W"]) -> InferenceCost:
    """Count what encoding one image costs, by encoding it.

    Activations, normalisation and drawing noise are not counted: they are small beside the rest.

    Args:
        net: The net whose encoder runs on the device.
        image: Any image (C, H, W).

    Returns:
        Operations and parameters of the encoder, and the bytes that are sent.
    """
    flops = count_operations(lambda: net.scale_noise(net.encode(image[None])))
    tensors = [*net.device_parameters().values(), *net.encoder.buffers()]  # frozen: as buffers
    parameters = sum(tensor.numel() for tensor in tensors)
    return InferenceCost(flops, parameters, BYTES_PER_VALUE * net.features)


def count_operations(compute: Callable[[], object]) -> int:
    """Count the operations of matrix products and convolutions in a computation.

    Args:
        compute: The computation, which is done once.

    Returns:
        The count; a multiplication and an addition are two.
    """
    with torch.no_grad(), count_flops() as counter:
        compute()
    return int(counter.get_total_flops())


def count_flops() -> Any:
    """Return a context whose `get_total_flops` counts the operations inside."""
    from torch.utils.flop_counter import FlopCounterMode  # a second: it brings the compiler

    return FlopCounterMode(display=False)
