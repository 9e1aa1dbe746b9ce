"""The parameters of a net as one flat vector, and as the arrays that travel."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from fedcel.errors import NetError
from fedcel.nets.copy_module import copy_module
from fedcel.nets.split_net import SplitNet


class FlatNet:
    """A split net whose parameters are views of one vector: one addition moves them all.

    Attributes:
        net: The net.
        vector: All parameters (P,), those of the device's half first.
        gradient: Their gradients (P,).
        cut: Number of the parameters of the device's half: encoder, and scale of the noise.
        shapes: The shape of each parameter, in the order of the vector.
    """

    def __init__(self, net: SplitNet) -> None:
        """Move a net's parameters into one vector.

        Args:
            net: The net, whose parameters become views.

        Raises:
            NetError: It has no parameters, or they are of several dtypes.
        """
        parameters = list(net.parameters())
        self.net = net
        self.shapes = [tuple(p.shape) for p in parameters]
        self.cut = sum(p.numel() for p in net.device_parameters().values())
        sizes = [p.numel() for p in parameters]
        if not sum(sizes) or any(p.dtype != parameters[0].dtype for p in parameters):
            raise NetError("a net needs parameters, all of one dtype")
        self.vector = parameters[0].new_empty(sum(sizes), requires_grad=False)
        self.gradient = torch.zeros_like(self.vector)
        views = zip(torch.split(self.vector, sizes), torch.split(self.gradient, sizes), strict=True)
        for parameter, (values, gradient) in zip(parameters, views, strict=True):
            values.copy_(parameter.detach().flatten())
            parameter.data = values.view(parameter.shape)
            parameter.grad = gradient.view(parameter.shape)

    def copy_to(self, device: torch.device) -> "FlatNet":
        """Copy the net to another device.

        Args:
            device: Where it is needed.

        Returns:
            The same net there, with memory of its own.
        """
        return FlatNet(copy_module(self.net).to(device))

    def backward(self, loss: Float[Tensor, ""], *, retain_graph: bool = False) -> None:
        """Fill `gradient` with that of a loss; what else learns gathers its own.

        Args:
            loss: A scalar.
            retain_graph: Whether another loss of the same batch follows.
        """
        self.gradient.zero_()
        torch.autograd.backward(loss, retain_graph=retain_graph)

    def load(self, vector: Float[Tensor, " P"]) -> None:
        """Overwrite all parameters.

        Args:
            vector: The new values (P,).
        """
        self.vector.copy_(vector)


def to_arrays(
    vector: Float[Tensor, " P"], shapes: Sequence[tuple[int, ...]]
) -> list[NDArray[np.float32]]:
    """Cut a flat vector into the arrays that travel.

    Args:
        vector: All parameters (P,).
        shapes: The shape of each parameter; their sizes sum to P.

    Returns:
        One array per parameter, copied.
    """
    sizes = [int(np.prod(shape)) for shape in shapes]
    parts = torch.split(vector.detach(), sizes)
    return [part.numpy().reshape(shape).copy() for part, shape in zip(parts, shapes, strict=True)]


def to_vector(arrays: Sequence[NDArray[np.float32]]) -> Float[Tensor, " P"]:
    """Join arrays that have travelled.

    Args:
        arrays: One per parameter.

    Returns:
        The flat vector (P,).
    """
    return torch.from_numpy(np.concatenate([np.ravel(array) for array in arrays]))
