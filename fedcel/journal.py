"""After every round: measure on the server's validation set, write, tell."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from fedcel import aggregation, metrics, runs, schedule
from fedcel.aggregation import ServerState
from fedcel.arrays import FlatNet
from fedcel.cel import controller, shared
from fedcel.data import Splits
from fedcel.errors import DivergedError, RunError
from fedcel.files import write_tensors, write_whole
from fedcel.seeding import generator
from fedcel.settings import Settings

Event = dict[str, object]
Tell = Callable[[Event], None]


class Journal:
    """Writes events, state and posterior samples of one run; every engine has the same one."""

    def __init__(
        self, folder: Path, settings: Settings, splits: Splits, flat: FlatNet, tell: Tell
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.splits = splits
        self.flat = flat
        self.tell = tell
        self.chain = runs.chain(folder, settings)
        self.lines: list[str] = []
        self.clock = time.perf_counter()

    def begin(self) -> ServerState:
        """Return the state before round 1; the net has its first parameters still."""
        cel, net = self.settings.cel, self.flat.net
        return aggregation.start(
            self.flat.vector,
            controller.initial(cel, net.cut.sigma, net.features),
            shared.initial(cel, net.features, self.splits.classes),
        )

    def resume(self) -> ServerState:
        """Return the last complete round's state; forget whatever was written after it."""
        state = runs.read_state(self.folder, self.begin())
        path = self.folder / "events.jsonl"
        try:
            lines = path.read_text().splitlines()
            self.lines = [line for line in lines if json.loads(line)["round"] <= state.round]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path} is damaged: {error}; start the run anew") from None
        self.chain.forget_after(state.round)
        return state

    def record(
        self,
        state: ServerState,
        clients: list[int],
        rejected: list[dict[str, object]],
        reported: Mapping[str, float],
    ) -> ServerState:
        """Write the round that led to `state`; the state last, so that it is never ahead.

        Returns what the next round starts from. DivergedError when the model is not finite:
        nothing is written.
        """
        if not state.model.isfinite().all():
            raise DivergedError(
                f"the model is not finite after round {state.round}; lower local.rate "
                f"({self.settings.local.rate})"
            )
        plan = schedule.plan(self.settings, state.round, 1.0, self.examples)
        now, scores = time.perf_counter(), self.validate(state)
        event: Event = {
            **reported,  # first: what clients tell never replaces what the server measured
            "round": state.round,
            **scores,
            "clients": len(clients),
            "rejected": rejected,
            "rate": plan.rate,
            "temperature": plan.temperature,
            "cel-weight": plan.cel_weight,
            "pull": plan.rate * plan.pull,
            "seconds": now - self.clock,
        } | tau(state)
        self.clock = now
        self.lines.append(json.dumps(event, allow_nan=False))
        write_whole(self.folder / "events.jsonl", "\n".join(self.lines) + "\n")
        self.sampled(state)
        state = self.steered(state, {**reported, **scores}, plan.cel_acts)
        runs.save_state(self.folder, state)
        self.tell(event)
        return state

    def sampled(self, state: ServerState) -> None:
        """Keep the model as a posterior sample if its round is one of the chain's."""
        after = state.round - schedule.burn_in_rounds(self.settings)
        if after > 0 and (after - 1) % self.settings.chain.thin == 0:
            self.chain.keep(state.round, state.model)

    def steered(self, state: ServerState, measured: Mapping[str, float], acts: bool) -> ServerState:
        """Return the state with an adaptive threshold moved, if the loss acted in the round.

        One that follows the accuracy waits until the ramp's end: early on, the model is merely
        young, and a threshold that rose for it would have to come all the way back.
        """
        cel = self.settings.cel
        young = cel.target == "accuracy" and state.round < cel.ramp * self.settings.rounds
        if not (state.control and acts) or young:
            return state
        control = controller.next_threshold(state.control, measured, cel)
        return state._replace(control=control)

    def validate(self, state: ServerState) -> dict[str, float]:
        """Return accuracy, NLL, ECE and within-class spread on the validation set."""
        x, y = self.splits.validation
        stream = generator(self.settings.seed, "validation", state.round)
        self.flat.load(state.model)
        with torch.no_grad():
            z = self.flat.net.encode(x)
            probabilities = self.flat.net.answer(self.flat.net.add_noise(z, stream)).softmax(1)
        spread = float(metrics.within_class_spread(z, y))
        return {**metrics.scores(probabilities, y), "within-class-spread": spread}

    def close(self, state: ServerState) -> None:
        """Write the last global model."""
        write_tensors(
            self.folder / "model.safetensors",
            {"model": state.model},
            {"round": str(state.round)},
        )

    @property
    def examples(self) -> int:
        """Return N, the training images of all clients together."""
        return sum(len(client.y) for client in self.splits.clients)


def tau(state: ServerState) -> Event:
    """Return the adaptive threshold of the round that led to `state`, before it moves."""
    return {"cel-threshold": state.control.threshold} if state.control else {}
