"""What a client keeps from round to round, in a folder of its own."""

from pathlib import Path

from fedcel.files import read_tensors, write_tensors
from fedcel.losses.cel import State


def save_client_state(folder: Path, number: int, state: State) -> None:
    """Write the state after round `number`; the one before it stays, for a resume in between."""
    write_tensors(folder / f"{number:06d}.safetensors", state)
    for old in sorted(folder.glob("*.safetensors"))[:-2]:
        old.unlink()


def read_client_state(folder: Path, number: int) -> State | None:
    """Return the newest state from before round `number`, or None."""
    earlier = [path for path in folder.glob("*.safetensors") if int(path.stem) < number]
    return read_tensors(max(earlier))[0] if earlier else None
