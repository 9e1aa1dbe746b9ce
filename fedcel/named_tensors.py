"""States, which are tensors by name: of several parts in one, and of several clients in one."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fedcel.errors import SettingsError, StackingError
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


def stack_states(states: Sequence[State]) -> State:
    """Join the states of several clients, a client a row; what learns is a leaf.

    Raises StackingError unless they are of the same names and shapes.
    """
    shapes = [{name: tensor.shape for name, tensor in state.items()} for state in states]
    if any(shape != shapes[0] for shape in shapes):
        raise StackingError("the clients' states are of different shapes")
    return {
        name: torch.stack([state[name].detach() for state in states]).requires_grad_(
            tensor.requires_grad
        )
        for name, tensor in states[0].items()
    }


def check_state_names(state: State, names: Iterable[str], part: str) -> None:
    """Raise SettingsError unless a client's state has all these tensors: else it is another's."""
    if missing := sorted(set(names) - state.keys()):
        raise SettingsError(
            f"a client's state holds {sorted(state)}, must hold {missing} for {part}: the loss or "
            "defence changed; start from an empty state"
        )


def select_row(state: State, row: int) -> State:
    """Return one client's state of several, with memory of its own; what learns is a leaf."""
    return {
        name: tensor.detach()[row].clone().requires_grad_(tensor.requires_grad)
        for name, tensor in state.items()
    }
