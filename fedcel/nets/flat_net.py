"""K copies of a split net, each with its parameters in one vector; the arrays that travel."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedcel.errors import NetError, StackingError
from fedcel.nets.client_layers import map_module, stack_layer, stack_noise_scale
from fedcel.nets.copy_module import copy_module
from fedcel.nets.encode_images import BoundMethod
from fedcel.nets.split_net import SplitNet
from fedcel.tensors import add_prefix, select_prefix
from fedcel.torch_state import compute_in

STACKED_IMAGES = 5
"""Dimensions of the images of several clients."""


class FlatNet:
    """K copies of a split net whose parameters are views of the rows of one matrix.

    One addition moves all parameters of all clients. Of a single copy the parameters are those of
    `net` itself, which is called as it is; several are computed at once, linear layers by a batched
    product, uncommon ones by `torch.vmap`.

    Attributes:
        net: The net.
        vectors: All parameters (K, P), a client a row, those of the device's half first.
        device_size: Number of parameters of the device's half: encoder, and scale of the noise.
        shapes: The shape of each parameter, in the order of a row.
    """

    def __init__(
        self, net: SplitNet, count: int = 1, precision: torch.dtype = torch.float32
    ) -> None:
        """Make room for the parameters of some clients.

        Args:
            net: The net. One copy takes its parameters over, which become views; several leave it
                as it is and hold no values until they are loaded.
            count: K, 1 or more.
            precision: `torch.bfloat16`: encoder and head compute matrix products and convolutions
                in it (autocast). Parameters, gradients, features and logits stay float32.

        Raises:
            NetError: The net has no parameters, or they are of several dtypes.
            StackingError: Several copies are wanted of a net whose layers share a parameter.
        """
        parameters = dict(net.named_parameters())
        sizes = [parameter.numel() for parameter in parameters.values()]
        dtypes = {parameter.dtype for parameter in parameters.values()}
        if not sum(sizes) or len(dtypes) > 1:
            raise NetError("a net needs parameters, all of one dtype")
        if count > 1 and len(list(net.named_parameters(remove_duplicate=False))) > len(sizes):
            raise StackingError("layers of the net share parameters, which no batched product has")
        self.net = net
        self.precision = precision
        self._takes_channels_last = count == 1 and precision is torch.bfloat16
        self.shapes = [tuple(parameter.shape) for parameter in parameters.values()]
        self.device_size = sum(parameter.numel() for parameter in net.device_parameters().values())
        self.vectors = next(iter(parameters.values())).new_empty(
            count, sum(sizes), requires_grad=False
        )
        self._gradients = torch.zeros_like(self.vectors)
        rows = zip(parameters.items(), torch.split(self.vectors, sizes, 1), strict=True)
        if count == 1:
            self._leaves: list[Tensor] = list(parameters.values())
            for (_, parameter), values in rows:
                values.copy_(parameter.detach().view(1, -1))
                parameter.data = values.view(parameter.shape)
            self._encode, self._answer = _on_row(net.encoder), _on_row(net.head)
            self._scale = None if net.noise_scale is None else _on_row(net.noise_scale)
        else:
            stacked = {
                name: values.view(count, *parameter.shape).requires_grad_(parameter.requires_grad)
                for (name, parameter), values in rows
            }
            self._leaves = list(stacked.values())
            self._head_parameters = select_prefix(stacked, "head.")
            self._encode = stack_layer(net.encoder, select_prefix(stacked, "encoder."))
            self._answer = stack_layer(net.head, self._head_parameters)
            self._scale = None
            if net.noise_scale is not None:
                scale_parameters = select_prefix(stacked, "noise_scale.")
                self._scale = stack_noise_scale(net.noise_scale, scale_parameters)
        gradients = [
            part.view(leaf.shape)
            for part, leaf in zip(torch.split(self._gradients, sizes, 1), self._leaves, strict=True)
        ]
        self._copied: list[tuple[Tensor, Tensor]] = []
        if count > 1:  # parts of rows are strided: autograd would add to them slowly
            self._copied = list(zip(self._leaves, gradients, strict=True))
        else:
            for leaf, gradient in zip(self._leaves, gradients, strict=True):
                leaf.grad = gradient

    @property
    def vector(self) -> Float[Tensor, " P"]:
        """The parameters of the first copy."""
        return self.vectors[0]

    @property
    def count(self) -> int:
        """K, the number of copies."""
        return len(self.vectors)

    @property
    def trained(self) -> Int[Tensor, " M"] | None:
        """Positions in a row of all parameters whose `requires_grad` is set; None: all are."""
        parameters = list(self.net.parameters())
        if all(parameter.requires_grad for parameter in parameters):
            return None
        marks = [torch.full((p.numel(),), p.requires_grad) for p in parameters]
        return torch.cat(marks).nonzero()[:, 0]

    def select_moving(self, *, is_encoder_frozen: bool) -> slice | Int[Tensor, " M"]:
        """Select the part of a row that moves: of the head only once the encoder is frozen.

        Whatever has `requires_grad=False` never moves; the part is positions where there is such.
        """
        first = self.device_size if is_encoder_frozen else 0
        trained = self.trained
        return slice(first, None) if trained is None else trained[trained >= first]

    def copy_to(self, device: torch.device, count: int = 1) -> "FlatNet":
        """Copy the net to a device, with memory of its own, in `count` copies."""
        return FlatNet(copy_module(self.net).to(device), count, self.precision)

    def load(self, vector: Float[Tensor, "*k P"]) -> None:
        """Overwrite all parameters: with one vector for every copy, or one for each."""
        self.vectors.copy_(vector)

    def encode(self, images: Float[Tensor, "K b ..."]) -> Float[Tensor, "K b D"]:
        """Compute the features of each client's images by its own encoder."""
        with compute_in(self.precision, self.vectors.device):
            try:
                z = self._encode(self._lay_out(images))
            except RuntimeError:  # a layer that uses `view` may not take channels last
                if not self._takes_channels_last:
                    raise
                self._takes_channels_last = False
                z = self._encode(self._lay_out(images))
        return z if self.precision is torch.float32 else z.float()

    def _lay_out(self, images: Float[Tensor, "K b ..."]) -> Float[Tensor, "K b ..."]:
        """Copy images, in which a net may work in place: channels last where that is faster."""
        if self._takes_channels_last and images.dim() == STACKED_IMAGES:
            return images[0].clone(memory_format=torch.channels_last).unsqueeze(0)
        return images.clone()

    def scale_noise(self, z: Float[Tensor, "K b D"]) -> Float[Tensor, "K b D"] | None:
        """Compute how much noise each feature of each client gets; see `SplitNet.scale_noise`."""
        return None if self._scale is None else self._scale(z)

    def answer(self, smashed: Float[Tensor, "K b D"]) -> Float[Tensor, "K b C"]:
        """Classify each client's smashed data by its own head."""
        with compute_in(self.precision, self.vectors.device):
            logits = self._answer(smashed)
        return logits if self.precision is torch.float32 else logits.float()

    def potential(
        self, smashed: Float[Tensor, "K b D"], y: Int[Tensor, "K b"]
    ) -> Float[Tensor, " K"]:
        """Compute each client's mean negative log-likelihood of its head's answers, in nats."""
        if self.count == 1:
            logits = self.answer(smashed).squeeze(0)
            return self.net.potential(logits, y.squeeze(0)).unsqueeze(0)
        logits = self.answer(smashed)
        if self.net.potential is cross_entropy:
            losses = cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
            return losses.view(y.shape).mean(1)
        parameters = add_prefix("owner.", self._head_parameters)
        return map_module(BoundMethod(self.net.head, "potential"), parameters)(logits, y)

    def gradient(
        self, losses: Float[Tensor, " K"], *, retain_graph: bool = False
    ) -> Float[Tensor, "K P"]:
        """Compute the gradient of each client's loss; other leaves, as a loss's theta, get `grad`.

        Args:
            losses: A loss of each client.
            retain_graph: Whether another loss of the same batch follows.

        Returns:
            The gradients, in memory of the nets that the next call overwrites.
        """
        if not self._copied:
            self._gradients.zero_()
        torch.autograd.backward(losses, torch.ones_like(losses), retain_graph=retain_graph)
        for leaf, gradient in self._copied:
            if leaf.grad is None:
                gradient.zero_()
            else:
                gradient.copy_(leaf.grad)
                leaf.grad = None
        return self._gradients


def _on_row(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return what calls a module on the batch of a single client."""

    def call(inputs: Float[Tensor, "1 ..."]) -> Float[Tensor, "1 ..."]:
        output: Tensor = module(inputs.squeeze(0))
        return output.unsqueeze(0)

    return call


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
