"""Tensors of several parts in one dictionary, told apart by the beginnings of their names."""

from collections.abc import Mapping

from torch import Tensor

from fedcel.plugins import require

State = dict[str, Tensor]
"""Named tensors that a part keeps between steps, or a client between rounds; never uploaded."""


def add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Put a part's tensors under names that begin with `prefix`.

    Args:
        prefix: Before each name.
        tensors: The part's tensors by their own names.

    Returns:
        The same tensors.
    """
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def select_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Take one part's tensors, under their own names.

    Args:
        tensors: Those of all parts.
        prefix: With which the names of the part begin.

    Returns:
        The part's tensors.
    """
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def require_state(state: object, method: str) -> State:
    """Refuse what is no state.

    Args:
        state: The result of a part's method.
        method: The method, for the message.

    Returns:
        The state.

    Raises:
        ContractError: It is no dictionary of tensors by name.
    """
    line = f"`{method}` must return the state, a dictionary of tensors by name"
    require(isinstance(state, dict), f"{line}; it returned {type(state).__name__}")
    assert isinstance(state, dict)
    for name, value in state.items():
        require(isinstance(name, str), f"{line}; one of its names is {name!r}")
        require(isinstance(value, Tensor), f"{line}; {name!r} is {type(value).__name__}")
    return state
