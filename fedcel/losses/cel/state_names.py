"""The names of the tensors in a client's state."""

from collections.abc import Iterable

from fedcel.errors import SettingsError
from fedcel.losses.protocol import State


def check_state_names(state: State, names: Iterable[str], part: str) -> None:
    """Raise SettingsError unless a client's state has all these tensors: else it is another's."""
    if missing := sorted(set(names) - state.keys()):
        raise SettingsError(
            f"a client's state holds {sorted(state)}, must hold {missing} for {part}: the loss or "
            "defence changed; start from an empty state"
        )
