"""States of parts in one dictionary of tensors."""

from fedcel.cel.base import State


def named(prefix: str, state: State) -> State:
    """Return a part's tensors under names that begin with `prefix`."""
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


def part(state: State, prefix: str) -> State:
    """Return the tensors of one part under their own names."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in state.items()
        if name.startswith(prefix)
    }
