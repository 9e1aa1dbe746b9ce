"""Where a node keeps its client's state between rounds: its own folder, or Flower's context."""

from hashlib import sha256
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from flwr.app import Array, ArrayRecord, Context

from fedcel.federation import record_names
from fedcel.losses.cel import State
from fedcel.runs import client_state


@runtime_checkable
class ClientMemory(Protocol):
    """Keeps one client's state from round to round."""

    def recall(self, number: int) -> State | None:
        """Return the state from before round `number`, None where there is none."""
        ...

    def remember(self, number: int, state: State) -> None:
        """Keep the state after round `number`."""
        ...


class FolderMemory:
    """State in a folder, which survives a restart of the node."""

    def __init__(self, folder: Path, *, forgets_later: bool) -> None:
        """`forgets_later`: states of later rounds, which an earlier run left, are removed."""
        self._folder, self._forgets_later = folder, forgets_later

    def recall(self, number: int) -> State | None:
        """Read the newest state from before round `number`."""
        return client_state.read_client_state(self._folder, number)

    def remember(self, number: int, state: State) -> None:
        """Write the state after round `number`, whole or not at all."""
        if self._forgets_later:
            forget_states_after(self._folder, number)
        client_state.save_client_state(self._folder, number, state)


class ContextMemory:
    """State in Flower's context: in the node's memory, for one run, gone with a restart."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def recall(self, number: int) -> State | None:
        """Return the state that is there."""
        record = self._context.state.get(record_names.CEL)
        if not isinstance(record, ArrayRecord):
            return None
        return {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}

    def remember(self, number: int, state: State) -> None:
        """Replace the state."""
        arrays = {name: Array(tensor.detach().numpy()) for name, tensor in state.items()}
        self._context.state[record_names.CEL] = ArrayRecord(arrays)


def choose_memory(context: Context, client: int, root: Path | None) -> ClientMemory:
    """Return where a client's state is kept.

    Args:
        context: Of the node; its `state-path` comes first.
        client: Its partition.
        root: Where there is no `state-path`: one folder for each partition below this one, or
            None for the context.
    """
    if folder := state_folder(context):
        return FolderMemory(folder, forgets_later=True)
    if root:
        return FolderMemory(partition_folder(root, client), forgets_later=False)
    return ContextMemory(context)


def partition_folder(root: Path, client: int) -> Path:
    """Return the folder of one client's state below `root`."""
    return root / f"partition-{client:06d}"


def state_folder(context: Context) -> Path | None:
    """Return where this node keeps the state of this run: one folder for each run folder `out`.

    Flower gives a resumed run another id, `out` stays. None for a node without `state-path`.
    """
    path = context.node_config.get("state-path")
    run = sha256(str(context.run_config.get("out", "none")).encode()).hexdigest()[:16]
    return Path(str(path)) / f"run-{run}" if path else None


def forget_states_after(folder: Path, number: int) -> None:
    """Remove states of later rounds, which an earlier run into the same folder left."""
    for path in folder.glob("*.safetensors"):
        if int(path.stem) > number:
            path.unlink(missing_ok=True)
