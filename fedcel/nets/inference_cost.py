"""Cost of one inference on the device: operations, parameters, bytes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedcel.nets.split_net import SplitNet

BYTES_PER_VALUE = 4
"""Float32 on the wire."""


class InferenceCost(NamedTuple):
    """The device's side of one inference."""

    flops: int
    """Of matrix products and convolutions; a multiplication and an addition are two."""
    parameters: int
    """Of the encoder, and of the scale of its noise."""
    bytes: int
    """Sent for one image, without the frame of the protocol that carries them."""


class OperationCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations by PyTorch's formulas.

    `FlopCounterMode` counts them alike, and loads the compiler for it, more than a second.
    """

    def __init__(self, formulas: Mapping[Any, Callable[..., int]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.formulas = formulas
        self.operations = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep PyTorch from loading its compiler, which it does to tell it to skip this mode."""
        return False

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Compute an operation and add what it counts."""
        output = func(*args, **(kwargs or {}))
        count = self.formulas.get(func.overloadpacket)
        if count is not None:
            self.operations += count(*args, **(kwargs or {}), out_val=output)
        return output


def measure_cost(net: SplitNet, image: Float[Tensor, "C H W"]) -> InferenceCost:
    """Count what encoding one image costs, by encoding it.

    Activations, normalisation and drawing noise are not counted: they are small beside the rest.

    Args:
        net: The net whose encoder runs on the device.
        image: Any image (C, H, W).

    Returns:
        Operations and parameters of the encoder, and the bytes that are sent.
    """
    from torch.utils.flop_counter import flop_registry  # brings a part of the compiler

    with torch.no_grad(), OperationCounter(flop_registry) as counter:
        z = net.encode(image[None])
        net.scale_noise(z)
    parameters = sum(p.numel() for p in net.device_parameters().values())
    return InferenceCost(counter.operations, parameters, BYTES_PER_VALUE * z.numel())
