"""State that a client keeps from round to round, in a folder of its own."""

from collections.abc import Sequence
from pathlib import Path

from fedcel.errors import RunError
from fedcel.federation import StoredState, load_state
from fedcel.files import read_tensors, write_tensors
from fedcel.tensors import State


class ClientStateFolder:
    """One client's states, after its last round and after the one that it started from.

    Args:
        folder: This client's own folder; it need not exist.
        client: Its partition, from 0, which is kept in each file; None: nobody asks.
    """

    def __init__(self, folder: str | Path, client: int | None = None) -> None:
        self._folder, self._client = Path(folder), client

    def find_newest(self, number: int) -> int:
        """Return the newest round before `number` whose state is there, 0 where there is none."""
        rounds = (int(path.stem) for path in self._folder.glob("*.safetensors"))
        return max((written for written in rounds if written < number), default=0)

    def read_state(self, number: int) -> State | None:
        """Read the state after a round, None where it is not there.

        RunError where the file is damaged, or says that it is of another round or client.
        """
        path = self._path(number)
        if not path.exists():
            return None
        state, metadata = read_tensors(path)
        for key, value in self._describe(number).items():
            if (stated := metadata.get(key)) != value:
                raise RunError(
                    f"{path} is of {key} {stated}, must be of {key} {value}: another file is in "
                    "its place; put the right one back, or start the run anew"
                )
        return state

    def write_state(self, number: int, state: State, before: int) -> None:
        """Write the state after a round, and delete all others but that of the round `before`."""
        write_tensors(self._path(number), state, self._describe(number))
        for path in self._folder.glob("*.safetensors"):
            if int(path.stem) not in (number, before):
                path.unlink(missing_ok=True)

    def require_state(self, number: int, expected: int | None) -> StoredState:
        """Load the state that a simulated client starts a round from: see `load_state`.

        Raises:
            RunError: It is not there; another would give another model.
        """
        if missing := self.find_missing(expected):
            raise missing_states_error([missing], number)
        return load_state(self, number, expected)

    def find_missing(self, expected: int | None) -> Path | None:
        """Find the missing file of the state after the `expected` round; None: all is well.

        Round 0 has none; None: nobody knows the round.
        """
        path = self._path(expected or 0)
        return path if expected and not path.exists() else None

    def delete_after(self, number: int) -> None:
        """Delete the states of later rounds."""
        for path in self._folder.glob("*.safetensors"):
            if int(path.stem) > number:
                path.unlink(missing_ok=True)

    def _describe(self, number: int) -> dict[str, str]:
        """Return what a file says of itself."""
        client = {} if self._client is None else {"client": str(self._client)}
        return {"round": str(number), **client}

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:06d}.safetensors"


def missing_states_error(paths: Sequence[str | Path], number: int) -> RunError:
    """Make the error that names all files of states that a round starts from and that are gone.

    Args:
        paths: The files, one or more.
        number: The round.

    Returns:
        The error, to be raised.
    """
    names = ", ".join(map(str, paths))
    is_or_are = "is missing: the losses' state" if len(paths) == 1 else "are missing: the states"
    return RunError(
        f"{names} {is_or_are} from which round {number} starts; put back what is missing, or "
        "start the run anew"
    )


def partition_folder(root: str | Path, client: int) -> Path:
    """Return the folder of one client's state.

    Args:
        root: The folder of all clients' states.
        client: Its partition, from 0.

    Returns:
        A folder below `root`; it need not exist.
    """
    return Path(root) / f"partition-{client:06d}"
