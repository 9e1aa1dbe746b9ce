"""The parameters of a net as one flat vector, and as the arrays that travel."""

from collections.abc import Sequence
from copy import deepcopy

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from fedcel.errors import NetError
from fedcel.nets.split_net import SplitNet

Arrays = list[NDArray[np.float32]]


class FlatNet:
    """A split net whose parameters are views of `vector`, their gradients views of `gradient`.

    One addition then moves all parameters at once. Encoder parameters come first, `cut` of them.
    """

    def __init__(self, net: SplitNet) -> None:
        parameters = list(net.parameters())
        self.net = net
        self.shapes = [tuple(p.shape) for p in parameters]
        self.cut = sum(p.numel() for p in net.encoder.parameters())
        size = sum(p.numel() for p in parameters)
        if not size or any(p.dtype != parameters[0].dtype for p in parameters):
            raise NetError("a net needs parameters, all of one dtype")
        self.vector = parameters[0].new_empty(size, requires_grad=False)
        self.gradient = torch.zeros_like(self.vector)
        sizes = [p.numel() for p in parameters]
        views = zip(torch.split(self.vector, sizes), torch.split(self.gradient, sizes), strict=True)
        for parameter, (value, slope) in zip(parameters, views, strict=True):
            value.copy_(parameter.detach().flatten())
            parameter.data = value.view(parameter.shape)
            parameter.grad = slope.view(parameter.shape)

    def on(self, place: torch.device) -> "FlatNet":
        """Return the same net on another device, of memory of its own."""
        return FlatNet(deepcopy(self.net).to(place))

    def load(self, vector: Float[Tensor, " P"]) -> None:
        """Overwrite all parameters."""
        self.vector.copy_(vector)


def to_arrays(vector: Float[Tensor, " P"], shapes: Sequence[tuple[int, ...]]) -> Arrays:
    """Return one array per parameter, copied out of the flat vector."""
    sizes = [int(np.prod(shape)) for shape in shapes]
    parts = torch.split(vector.detach(), sizes)
    return [part.numpy().reshape(shape).copy() for part, shape in zip(parts, shapes, strict=True)]


def to_vector(arrays: Sequence[NDArray[np.float32]]) -> Float[Tensor, " P"]:
    """Return the flat vector of a list of arrays."""
    return torch.from_numpy(np.concatenate([np.ravel(array) for array in arrays]))
