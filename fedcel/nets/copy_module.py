"""Copies of modules, also of those that hold a tensor which they computed."""

from copy import deepcopy
from typing import TypeVar

from torch import Tensor, nn

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def copy_module(module: AnyModule) -> AnyModule:
    """Copy a module; the last weight that weight_norm computed stops no copy.

    Args:
        module: Any module, which stays as it is.

    Returns:
        The copy, parameters and buffers included.
    """
    computed = [
        value
        for layer in module.modules()
        for value in vars(layer).values()
        if isinstance(value, Tensor) and value.grad_fn is not None
    ]
    return deepcopy(module, {id(value): value.detach().clone() for value in computed})
