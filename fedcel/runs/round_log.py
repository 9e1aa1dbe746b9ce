"""The files that a run writes round by round. Decides nothing; see `fedcel.runs.server_run`."""

import json
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.errors import RunError
from fedcel.federation import ServerState
from fedcel.files import write_json, write_tensors, write_whole
from fedcel.posterior import Chain
from fedcel.runs import run_folder
from fedcel.runs.round_event import Event
from fedcel.settings import Settings


class RoundLog:
    """Writes events, server state, posterior samples and the last model of one run folder."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder = folder
        self.chain: Chain = run_folder.open_chain(folder, settings)
        self._lines: list[str] = []

    def delete_after(self, number: int) -> None:
        """Delete what was written of rounds later than `number`: a run was killed in one.

        Raises:
            RunError: The events are damaged.
        """
        self.chain.delete_after(number)
        path = self.folder / "events.jsonl"
        if not number:
            return
        try:
            lines = path.read_text().splitlines()
            self._lines = [line for line in lines if json.loads(line)["round"] <= number]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path} is damaged: {error}; start the run anew") from None

    def write_event(self, event: Event) -> None:
        """Add a round's line to events.jsonl."""
        self._lines.append(json.dumps(event, allow_nan=False))
        write_whole(self.folder / "events.jsonl", "\n".join(self._lines) + "\n")

    def write_functionals(self, rounds: list[int], rows: list[Float[Tensor, " F"]]) -> None:
        """Write what the chain's convergence is judged by, of all sampled rounds."""
        tensors = {"functionals": torch.stack(rows), "rounds": torch.tensor(rounds)}
        write_tensors(run_folder.trace_path(self.folder), tensors)

    def write_sample(self, state: ServerState) -> None:
        """Keep the model of this round as a posterior sample."""
        self.chain.write_sample(state.round, state.model)

    def write_state(self, state: ServerState) -> None:
        """Write what a resumed run needs; last of a round's files, so that it is never ahead."""
        run_folder.write_state(self.folder, state)

    def write_requested_round(self, number: int) -> None:
        """Note, before they are requested, that clients send noisy updates in this round.

        What a run that was stopped had requested stays: a round begun again is paid for again.
        """
        path = self.folder / run_folder.UPLOADS
        write_json(path, [*run_folder.read_requested_rounds(self.folder), number])

    def write_model(self, state: ServerState) -> None:
        """Write the last global model."""
        path = self.folder / "model.safetensors"
        write_tensors(path, {"model": state.model}, {"round": str(state.round)})
