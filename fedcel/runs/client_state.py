"""What a client keeps from round to round, in a folder of its own."""

from pathlib import Path

from fedcel.files import read_tensors, write_tensors
from fedcel.losses.cel import State


class ClientStateFolder:
    """One client's state after each of its last two rounds.

    Args:
        folder: This client's own folder; it need not exist.
        is_reused: Whether another run may have written into it: states of later rounds are then
            its, and deleted.
    """

    def __init__(self, folder: str | Path, *, is_reused: bool = False) -> None:
        self._folder, self._is_reused = Path(folder), is_reused

    def read_state(self, number: int) -> State | None:
        """Read the newest state from before a round.

        Args:
            number: The round.

        Returns:
            The state, None where there is none.
        """
        earlier = [path for path in self._folder.glob("*.safetensors") if int(path.stem) < number]
        return read_tensors(max(earlier))[0] if earlier else None

    def write_state(self, number: int, state: State) -> None:
        """Write the state after a round; the one before it stays, for a resume in between.

        Args:
            number: The round.
            state: Nothing is written where it is empty: the losses keep nothing.
        """
        if not state:
            return
        if self._is_reused:
            self.delete_after(number)
        write_tensors(self._folder / f"{number:06d}.safetensors", state)
        for oldest in sorted(self._folder.glob("*.safetensors"))[:-2]:
            oldest.unlink()

    def delete_after(self, number: int) -> None:
        """Delete the states of later rounds.

        Args:
            number: The last round whose state stays.
        """
        for path in self._folder.glob("*.safetensors"):
            if int(path.stem) > number:
                path.unlink(missing_ok=True)


def partition_folder(root: str | Path, client: int) -> Path:
    """Return the folder of one client's state.

    Args:
        root: The folder of all clients' states.
        client: Its partition, from 0.

    Returns:
        A folder below `root`; it need not exist.
    """
    return Path(root) / f"partition-{client:06d}"


def is_state_usable(state: State) -> bool:
    """Say whether a client's state is worth keeping: a diverged round's would poison the next.

    Args:
        state: Tensors by name.

    Returns:
        Whether all values are finite.
    """
    return all(bool(tensor.isfinite().all()) for tensor in state.values())
