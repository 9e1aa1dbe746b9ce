"""States of parts in one dictionary of tensors."""

from collections.abc import Iterable

from fedcel.errors import SettingsError
from fedcel.losses.cel.protocol import State


def check_state_names(state: State, names: Iterable[str], part: str) -> None:
    """Raise SettingsError unless a client's state has all these tensors: else it is another's."""
    if missing := sorted(set(names) - state.keys()):
        raise SettingsError(
            f"a client's state holds {sorted(state)}, must hold {missing} for {part}: the loss or "
            "defence changed; start from an empty state"
        )


def add_prefix(prefix: str, state: State) -> State:
    """Return a part's tensors under names that begin with `prefix`."""
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


def select_prefix(state: State, prefix: str) -> State:
    """Return the tensors of one part under their own names."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in state.items()
        if name.startswith(prefix)
    }
