"""Layers of K clients at once, each client with parameters of its own."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from fedcel.nets.cut import NoiseScale
from fedcel.tensors import select_prefix

Layer = Callable[[Tensor], Tensor]
"""Inputs of K clients (K, b, ...) to outputs (K, b, ...)."""

_ELEMENTWISE = (nn.Identity, nn.ReLU, nn.Sigmoid, nn.Tanh, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU)


def stack_layer(module: nn.Module, parameters: Mapping[str, Tensor]) -> Layer:
    """Choose how a module is computed for K clients, by parameters (K, ...) of all of them.

    Subclasses of layers may do anything and are mapped.
    """
    kind = type(module)
    if module._forward_hooks or module._forward_pre_hooks:
        return map_module(module, parameters)
    if kind is nn.Sequential:
        layers = [
            stack_layer(child, select_prefix(parameters, f"{name}."))
            for name, child in module._modules.items()
            if child is not None  # `named_children` skips one that is repeated
        ]

        def chain(x: Tensor) -> Tensor:
            for layer in layers:
                x = layer(x)
            return x

        return chain
    if kind is nn.Linear and "weight" in parameters:
        return stack_linear(parameters["weight"], parameters.get("bias"))
    is_flatten = isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1)
    if kind is nn.Flatten and is_flatten:
        return lambda x: x.flatten(2)
    if kind in _ELEMENTWISE:
        return module
    return map_module(module, parameters)


def stack_noise_scale(scale: nn.Module, parameters: Mapping[str, Tensor]) -> Layer:
    """Choose how the scale of the noise is computed for K clients, by parameters (K, ...)."""
    if type(scale) is not NoiseScale:
        return map_module(scale, parameters)
    bias = parameters["bias"]
    if "weight" not in parameters:
        return lambda z: scale.bound(bias[:, None].expand_as(z))
    exponent = stack_linear(parameters["weight"], bias)
    return lambda z: scale.bound(exponent(z))


def map_module(module: nn.Module, parameters: Mapping[str, Tensor]) -> Callable[..., Tensor]:
    """Map a module over the inputs and parameters of K clients by `torch.vmap`."""

    def call(values: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        output: Tensor = functional_call(module, dict(values), inputs)
        return output

    mapped = torch.vmap(call)
    return lambda *inputs: mapped(dict(parameters), *inputs)


def stack_linear(weight: Float[Tensor, "K o i"], bias: Float[Tensor, "K o"] | None) -> Layer:
    """Return a linear layer of K clients, each with weights of its own."""

    def layer(x: Float[Tensor, "K ..."]) -> Float[Tensor, "K ..."]:
        rows = x if x.dim() == 3 else x.flatten(1, -2)
        out: Tensor = _BatchedLinear.apply(rows, weight, bias)
        return out if x.dim() == 3 else out.view(*x.shape[:-1], -1)

    return layer


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
        low, high = gradient.dtype, weight.dtype  # other than each other under autocast only
        by_x = torch.bmm(gradient, weight.to(low)).to(x.dtype) if ctx.needs_input_grad[0] else None
        return (
            by_x,
            torch.bmm(gradient.mT, x.to(low)).to(high),
            gradient.sum(1).to(high) if ctx.has_bias else None,
        )
