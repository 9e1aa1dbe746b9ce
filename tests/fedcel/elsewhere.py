"""A GPU that is not there: a second device whose tensors compute on the processor.

It refuses what a GPU refuses: operations of tensors of two devices, and the processor's random
numbers. Its kernels are the processor's: what moves there and back is to be the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Self

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from fedcel.nets.device import CPU

ELSEWHERE = torch.device("lazy", 0)  # nobody else's here, and autograd starts no threads for it
ATEN = torch.ops.aten
COPIES = (ATEN._to_copy.default, ATEN.copy_.default)
INDEXING = (ATEN.index.Tensor, ATEN.index_put_.default, ATEN._unsafe_index.Tensor)
JOINING = (ATEN.cat.default, ATEN.stack.default)
META = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
LIBRARY = torch.library.Library("aten", "IMPL")


class There(Tensor):
    """A tensor that says it is elsewhere, and the one on the processor that holds its numbers."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Self:
        """Wrap one tensor; both are of the same shape and strides."""
        made = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=ELSEWHERE,
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Compute on the processor what may be computed here."""
        return computed(func, args, kwargs or {})

    @property
    def data(self) -> Tensor:  # type: ignore[override]
        """What a parameter holds, without its gradient."""
        return Tensor.data.__get__(self)

    @data.setter
    def data(self, other: "There") -> None:
        """Hold another one's numbers."""
        Tensor.data.__set__(self, other)
        self.held = other.held

    def tolist(self) -> list[Any]:
        """Return the numbers, which PyTorch reads of no tensor that is wrapped."""
        return self.held.tolist()

    def __repr__(self) -> str:
        return f"There({self.held})"


class Elsewhere(TorchDispatchMode):
    """Has tensors made there, and looks at operations that no tensor of there takes part in."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Compute on the processor what may be computed there."""
        return computed(func, args, kwargs or {})


def computed(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return what an operation gives, there if its tensors are, or where it is asked for."""
    refuse_mixed(func, args, kwargs)
    tensors = [one for one in tree_leaves([args, kwargs]) if isinstance(one, Tensor)]
    there = any(isinstance(one, There) for one in tensors)
    if kwargs.get("device") is not None:
        there = torch.device(kwargs["device"]).type == ELSEWHERE.type
    elif func is ATEN.copy_.default:
        there = isinstance(args[0], There)
    if there and torch.Tag.nondeterministic_seeded in func.tags:
        raise RuntimeError(f"{func} of another device's random numbers")
    here = {key: CPU if key == "device" else value for key, value in kwargs.items()}
    given, named = tree_map_only(There, lambda one: one.held, (args, here))
    made = func(*given, **named)
    if func is ATEN._to_copy.default and made.data_ptr() == given[0].data_ptr():
        made = made.clone()  # another device's memory is never shared
    if there and torch.Tag.inplace_view in func.tags:
        with torch._C._DisableTorchDispatch():
            func(*args, **kwargs)  # the wrapper's own shape, too
    return wrapped(made, tensors) if there else made


def refuse_mixed(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse tensors of two devices; copies may, and an index or a number on the processor."""
    looked = args[:1] if func in INDEXING else [args, *kwargs.values()]
    tensors = [one for one in tree_leaves(looked) if isinstance(one, Tensor)]
    if func not in JOINING:
        tensors = [one for one in tensors if isinstance(one, There) or one.dim()]
    if func not in COPIES and len({isinstance(one, There) for one in tensors}) > 1:
        raise RuntimeError(f"{func} of tensors of two devices")
    if func in INDEXING and any(isinstance(one, There) for one in tree_leaves(args[1:])):
        assert isinstance(args[0], There), f"{func} of the processor's tensor by another device's"


def wrapped(made: Any, taken: Sequence[Tensor]) -> Any:
    """Return results there; what was changed in place is the tensor that was given."""
    known = {id(one.held): one for one in taken if isinstance(one, There)}
    return tree_map_only(
        Tensor, lambda one: known[id(one)] if id(one) in known else There(one), made
    )


def empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> There:
    """Return memory there: `torch.tensor` and a first `Tensor.to` ask for it below the mode."""
    return There(torch.empty_strided(size, stride, dtype=dtype))


def copy_from(source: Tensor, target: There, non_blocking: bool = False) -> There:
    target.held.copy_(source)
    return target


def empty(size: Any, *, dtype: Any = None, **_: Any) -> There:
    """Return memory there, the numbers in a row."""
    return There(torch.empty(size, dtype=dtype))


def as_strided(tensor: There, *where: Any) -> There:
    """Give a wrapper another shape in place, as a tensor without memory has it done."""
    return ATEN.as_strided_.default.redispatch(META, tensor, *where)


LIBRARY.impl("empty.memory_format", empty, "Lazy")
LIBRARY.impl("empty_strided", empty_strided, "Lazy")
LIBRARY.impl("as_strided_", as_strided, "Lazy")
LIBRARY.impl("_copy_from", copy_from, "Lazy")


@contextmanager
def pretended(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> Iterator[None]:
    """Let the modules believe in a GPU."""
    with monkeypatch.context() as patch, Elsewhere():
        for module in modules:
            patch.setattr(module, "fastest_device", lambda net: ELSEWHERE)
        yield
