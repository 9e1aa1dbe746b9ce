"""Several clients' copies of one net, computed at once: a layer is one batched product."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from fedcel.errors import StackingError
from fedcel.named_tensors import add_prefix, select_prefix
from fedcel.nets.flat_parameters import FlatNet
from fedcel.nets.noise_scale import NoiseScale, whiten_features
from fedcel.nets.split_net import SplitNet

Layer = Callable[[Tensor], Tensor]
"""Inputs of K clients (K, b, ...) to outputs (K, b, ...)."""

_ELEMENTWISE = (nn.Identity, nn.ReLU, nn.Sigmoid, nn.Tanh, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU)


class StackedNet:
    """K copies of a net whose parameters are views of the rows of one matrix.

    Linear layers are computed by a batched product; whatever is none of the common layers, by
    `torch.vmap` over the clients.

    Attributes:
        net: The copies as one net: images (K, b, C, H, W) to features (K, b, D) to logits.
        vector: All parameters (K, P), a client a row, those of the device's half first.
        gradient: Their gradients (K, P).
        cut: Number of the parameters of the device's half.
    """

    def __init__(self, flat: FlatNet, count: int) -> None:
        """Make room for the parameters of some clients.

        Args:
            flat: The net; nothing of it is changed or read but its layers.
            count: K.

        Raises:
            StackingError: Layers of the net share a parameter.
        """
        uses = list(flat.net.named_parameters(remove_duplicate=False))
        if len(uses) > len(list(flat.net.parameters())):
            raise StackingError("layers of the net share parameters, which no batched product has")
        self.cut = flat.cut
        self.vector = flat.vector.new_empty(count, len(flat.vector))
        self.gradient = torch.zeros_like(self.vector)
        sizes = [parameter.numel() for parameter in flat.net.parameters()]
        self._parameters = {
            name: part.view(count, *parameter.shape).requires_grad_()
            for (name, parameter), part in zip(
                flat.net.named_parameters(), torch.split(self.vector, sizes, 1), strict=True
            )
        }
        self._gradients = [
            part.view(parameter.shape)
            for parameter, part in zip(
                self._parameters.values(), torch.split(self.gradient, sizes, 1), strict=True
            )
        ]
        self.net = StackedSplitNet(flat.net, self._parameters)

    def load(self, vector: Float[Tensor, " P"]) -> None:
        """Overwrite the parameters of every client.

        Args:
            vector: The new values (P,), the same for all.
        """
        self.vector.copy_(vector)

    def backward(self, losses: Float[Tensor, " K"], *, retain_graph: bool = False) -> None:
        """Fill `gradient` with that of each client's loss; see `FlatNet.backward`."""
        torch.autograd.backward(losses, torch.ones_like(losses), retain_graph=retain_graph)
        for parameter, target in zip(self._parameters.values(), self._gradients, strict=True):
            if parameter.grad is None:
                target.zero_()
            else:
                target.copy_(parameter.grad)
                parameter.grad = None


class StackedSplitNet:
    """Encoder, head and potential of K copies of a net; see `SplitNet`."""

    def __init__(self, net: SplitNet, parameters: Mapping[str, Tensor]) -> None:
        """Choose how each layer is computed.

        Args:
            net: The net.
            parameters: Each parameter by its name, of K clients (K, ...).
        """
        self.cut, self.features = net.cut, net.features
        self._head = net.head
        self._head_parameters = select_prefix(parameters, "head.")
        self._encode = _stack_layer(net.encoder, select_prefix(parameters, "encoder."))
        self._scale = None
        if net.noise_scale is not None:
            self._scale = _stack_scale(net.noise_scale, select_prefix(parameters, "noise_scale."))
        self._answer = _stack_layer(net.head, self._head_parameters)
        self._is_classifier = net.potential is cross_entropy

    def encode(self, images: Float[Tensor, "K b ..."]) -> Float[Tensor, "K b D"]:
        """Compute the features of each client's images by its own encoder."""
        return self._encode(images)

    def scale_noise(self, z: Float[Tensor, "K b D"]) -> Float[Tensor, "K b D"] | None:
        """Compute how much noise each feature of each client gets; see `SplitNet.scale_noise`."""
        return None if self._scale is None else self._scale(z)

    def whiten(self, z: Float[Tensor, "K b D"]) -> Float[Tensor, "K b D"]:
        """Express features in units in which all have the same noise; see `SplitNet.whiten`."""
        return whiten_features(z, self.scale_noise(z))

    def answer(self, smashed: Float[Tensor, "K b D"]) -> Float[Tensor, "K b C"]:
        """Classify each client's smashed data by its own head."""
        return self._answer(smashed)

    def potential(
        self, logits: Float[Tensor, "K b C"], y: Int[Tensor, "K b"]
    ) -> Float[Tensor, " K"]:
        """Compute each client's mean negative log-likelihood, in nats."""
        if self._is_classifier:
            losses = cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
            return losses.view(y.shape).mean(1)
        return _vmap_module(_Potential(self._head), add_prefix("head.", self._head_parameters))(
            logits, y
        )


class _Potential(nn.Module):
    """A head's own potential, as a module that is called."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        potential: Tensor = self.head.potential(logits, y)  # type: ignore[operator]
        return potential


def _stack_layer(module: nn.Module, parameters: Mapping[str, Tensor]) -> Layer:
    """Return what computes a module for K clients; subclasses may do anything and are mapped."""
    kind = type(module)
    if kind is nn.Sequential:
        layers = [
            _stack_layer(child, select_prefix(parameters, f"{name}."))
            for name, child in module._modules.items()
            if child is not None  # `named_children` skips one that is repeated
        ]
        return _Chain(layers)
    if kind is nn.Linear and "weight" in parameters:
        return _Linear(parameters["weight"], parameters.get("bias"))
    if isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1):
        return lambda x: x.flatten(2)
    if kind in _ELEMENTWISE:
        return module
    return _vmap_module(module, parameters)


def _stack_scale(scale: nn.Module, parameters: Mapping[str, Tensor]) -> Layer:
    """Return what computes the scale of the noise for K clients."""
    if type(scale) is not NoiseScale:
        return _vmap_module(scale, parameters)
    bias = parameters["bias"]
    if "weight" not in parameters:
        return lambda z: scale.bound(bias[:, None].expand_as(z))
    exponent = _Linear(parameters["weight"], bias)
    return lambda z: scale.bound(exponent(z))


def _vmap_module(module: nn.Module, parameters: Mapping[str, Tensor]) -> Callable[..., Tensor]:
    def call(values: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        output: Tensor = functional_call(module, dict(values), inputs)
        return output

    mapped = torch.vmap(call)
    return lambda *inputs: mapped(dict(parameters), *inputs)


class _Chain:
    """Layers one after the other."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = layers

    def __call__(self, x: Tensor) -> Tensor:
        for layer in self._layers:
            x = layer(x)
        return x


class _Linear:
    """A linear layer of K clients, each with weights of its own."""

    def __init__(self, weight: Float[Tensor, "K o i"], bias: Float[Tensor, "K o"] | None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, x: Float[Tensor, "K ..."]) -> Float[Tensor, "K ..."]:
        rows = x if x.dim() == 3 else x.flatten(1, -2)
        out: Tensor = _BatchedLinear.apply(rows, self._weight, self._bias)
        return out if x.dim() == 3 else out.view(*x.shape[:-1], -1)


class _BatchedLinear(torch.autograd.Function):
    """x W^T + b of K clients.

    Autograd's own gradient of W^T is a transposed one, which it then copies into the layout of W.
    """

    # Without `setup_context`, which looks up signatures at each call, longer than all else takes.
    @staticmethod
    def forward(
        ctx: Any,
        x: Float[Tensor, "K B i"],
        weight: Float[Tensor, "K o i"],
        bias: Float[Tensor, "K o"] | None,
    ) -> Float[Tensor, "K B o"]:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        if bias is None:
            return torch.bmm(x, weight.mT)
        return torch.baddbmm(bias[:, None], x, weight.mT)

    @staticmethod
    def backward(
        ctx: Any, gradient: Float[Tensor, "K B o"]
    ) -> tuple[Tensor | None, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        return (
            torch.bmm(gradient, weight) if ctx.needs_input_grad[0] else None,
            torch.bmm(gradient.mT, x),
            gradient.sum(1) if ctx.has_bias else None,
        )
