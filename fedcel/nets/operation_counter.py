"""Counting the operations of what is computed, as PyTorch does."""

from collections.abc import Mapping, Sequence

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class OperationCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations by PyTorch's formulas.

    `FlopCounterMode` counts them alike, and loads the compiler for it, more than a second.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Say that nobody compiles under this mode: the compiler is loaded to be told not to."""
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
        count = flop_registry.get(func.overloadpacket)
        if count is not None:
            self.operations += count(*args, **(kwargs or {}), out_val=output)
        return output
