"""A GPU that is not there: PyTorch's device without memory, which mixes with no other.

Shapes and devices are checked as on any device. There are no numbers: what is read is 1, .5,
true or nothing.
"""

from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from fedcel.device import CPU

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


def pretend(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
    """Let the modules believe in a GPU; numbers that are on the processor stay what they are."""
    for module in modules:
        monkeypatch.setattr(module, "fastest", lambda net: ELSEWHERE)
    for name in ("add_", "mul_"):
        monkeypatch.setattr(Tensor, name, unmixed(getattr(Tensor, name)))
    monkeypatch.setattr(Tensor, "nonzero", found)
    monkeypatch.setattr(Tensor, "tolist", lambda tensor: [] if tensor.is_meta else LIST(tensor))
    monkeypatch.setattr(Tensor, "to", brought)
    monkeypatch.setattr(Tensor, "cpu", lambda tensor: brought(tensor, CPU))
    read = {"__float__": (FLOAT, 0.5), "__int__": (INT, 1), "__bool__": (BOOL, True)}
    for name, (real, made) in (read | {"item": (ITEM, 0.5)}).items():
        monkeypatch.setattr(Tensor, name, reading(real, made))


def reading(real: Any, made: object) -> Any:
    """Return how a number is read: as ever, or `made` where there is none."""
    return lambda tensor: made if tensor.is_meta else real(tensor)


def unmixed(change: Any) -> Any:
    """Return an operation in place that refuses another device, which that one does not."""

    def checked(tensor: Tensor, other: Any, **more: Any) -> Tensor:
        if isinstance(other, Tensor) and other.dim() and other.is_meta != tensor.is_meta:
            raise RuntimeError(f"{change.__name__} of {tensor.device} and {other.device}")
        return change(tensor, other, **more)

    return checked
