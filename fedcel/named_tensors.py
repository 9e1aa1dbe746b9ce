"""Tensors of several parts in one dictionary, told apart by the beginnings of their names."""

from collections.abc import Mapping

from torch import Tensor

from fedcel.plugins import require

State = dict[str, Tensor]
"""Named tensors that a part keeps between steps, or a client between rounds; never uploaded."""


def add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Put a part's tensors under names that begin with `prefix`."""
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def select_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Select the tensors whose names begin with `prefix`, under their names without it."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def require_state(state: object, method: str) -> State:
    """Refuse as a state what `method` returned and is no dictionary of tensors: ContractError."""
    line = f"`{method}` must return the state, a dictionary of tensors by name"
    require(isinstance(state, dict), f"{line}; it returned {type(state).__name__}")
    assert isinstance(state, dict)
    for name, value in state.items():
        require(isinstance(name, str), f"{line}; one of its names is {name!r}")
        require(isinstance(value, Tensor), f"{line}; {name!r} is {type(value).__name__}")
    return state
