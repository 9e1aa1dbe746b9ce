"""A GPU that is not there: PyTorch's device without memory, which mixes with no other.

Shapes and devices are checked as on any device. There are no numbers: what is read is 1, .5,
true or nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedcel.device import CPU

ATEN = torch.ops.aten
COPIES = (ATEN._to_copy.default, ATEN.copy_.default)
INDEXING = (ATEN.index.Tensor, ATEN.index_put_.default, ATEN._unsafe_index.Tensor)
ELSEWHERE = torch.device("meta")
TO, FLOAT, INT, BOOL, ITEM = (
    Tensor.to,
    Tensor.__float__,
    Tensor.__int__,
    Tensor.__bool__,
    Tensor.item,
)
NONZERO, LIST = Tensor.nonzero, Tensor.tolist


def brought(tensor: Tensor, *how: Any, **more: Any) -> Tensor:
    """Copy as `Tensor.to` does, zeros from where there is no memory."""
    if tensor.is_meta and how == (CPU,):
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
    return TO(tensor, *how, **more)


def found(tensor: Tensor) -> Tensor:
    """Take all values for others than 0 where there are none."""
    if not tensor.is_meta:
        return NONZERO(tensor)
    return torch.empty(tensor.numel(), tensor.dim(), dtype=torch.long, device=ELSEWHERE)


class Unmixed(TorchDispatchMode):
    """Refuse operations of tensors of two devices: that device alone lets many of them pass."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Copies may, and numbers; an index may lie on the processor, not its tensor."""
        kwargs = kwargs or {}
        looked = args[:1] if func in INDEXING else [args, *kwargs.values()]
        tensors = [one for one in tree_leaves(looked) if isinstance(one, Tensor) and one.dim()]
        if func not in COPIES and len({one.is_meta for one in tensors}) > 1:
            raise RuntimeError(f"{func} of tensors of two devices")
        if func in INDEXING and any(one.is_meta for one in tree_leaves(args[1:])):
            assert args[0].is_meta
        return func(*args, **kwargs)


@contextmanager
def pretended(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> Iterator[None]:
    """Let the modules believe in a GPU; numbers that are on the processor stay what they are."""
    with monkeypatch.context() as patch, Unmixed():
        for module in modules:
            patch.setattr(module, "fastest", lambda net: ELSEWHERE)
        patch.setattr(Tensor, "nonzero", found)
        patch.setattr(Tensor, "tolist", lambda tensor: [] if tensor.is_meta else LIST(tensor))
        patch.setattr(Tensor, "to", brought)
        patch.setattr(Tensor, "cpu", lambda tensor: brought(tensor, CPU))
        read = {"__float__": (FLOAT, 0.5), "__int__": (INT, 1), "__bool__": (BOOL, True)}
        for name, (real, made) in (read | {"item": (ITEM, 0.5)}).items():
            patch.setattr(Tensor, name, reading(real, made))
        yield


def reading(real: Any, made: object) -> Any:
    """Return how a number is read: as ever, or `made` where there is none."""
    return lambda tensor: made if tensor.is_meta else real(tensor)
