"""After every round: measure on the server's validation set, write, tell."""

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.data import Splits
from fedcel.errors import DivergedError, RunError
from fedcel.federation import aggregation
from fedcel.federation.aggregation import ServerState, of_classes
from fedcel.files import write_json, write_tensors, write_whole
from fedcel.losses.cel import adaptive_threshold, averaged_centres
from fedcel.metrics import calibration
from fedcel.nets.flat_parameters import FlatNet
from fedcel.posterior import round_plan
from fedcel.posterior.diagnostics import Diagnosis
from fedcel.posterior.langevin_step import nominal_temperature
from fedcel.posterior.trace import Trace
from fedcel.runs import run_folder
from fedcel.seeding import generator
from fedcel.settings.parsing import Settings, burn_in_rounds

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
        self.chain = run_folder.chain(folder, settings)
        self.trace = Trace(run_folder.trace_path(folder))
        self.lines: list[str] = []
        self.clock = time.perf_counter()

    def begin(self) -> ServerState:
        """Return the state before round 1; forget what a run killed in that round has left."""
        self.chain.forget_after(0)
        self.asking(1)
        return self.fresh()

    def fresh(self) -> ServerState:
        """Return the state before round 1; the net has its first parameters still."""
        cel, net = self.settings.cel, self.flat.net
        return aggregation.start(
            self.flat.vector,
            adaptive_threshold.initial(cel, net.cut.sigma, net.features),
            averaged_centres.initial(cel, net.features, self.splits.classes),
        )

    def resume(self) -> ServerState:
        """Return the last complete round's state; forget whatever was written after it."""
        state = run_folder.read_state(self.folder, self.fresh())
        path = self.folder / "events.jsonl"
        try:
            lines = path.read_text().splitlines()
            self.lines = [line for line in lines if json.loads(line)["round"] <= state.round]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path} is damaged: {error}; start the run anew") from None
        self.chain.forget_after(state.round)
        self.trace = run_folder.trace(self.folder, state.round)
        if state.round < self.settings.rounds:
            self.asking(state.round + 1)
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
        plan = round_plan.plan(self.settings, state.round, 1.0, self.examples)
        reported = of_classes(reported, self.splits.classes)
        now, (scores, functionals) = time.perf_counter(), self.validate(state)
        diagnosis = None
        if round_plan.kept(self.settings, state.round):
            diagnosis = self.trace.add(state.round, functionals)
        event: Event = {
            **reported,  # first: what clients tell never replaces what the server measured
            "round": state.round,
            **scores,
            "clients": len(clients),
            "rejected": rejected,
            "rate": plan.rate,
            "temperature": plan.temperature,
            "cel-weight": plan.cel_weight,
            "nominal-temperature": nominal_temperature(plan),
            "pull": plan.rate * plan.pull,
            "seconds": now - self.clock,
        }
        event |= tau(state) | (told(diagnosis) if diagnosis else {})
        self.clock = now
        self.refuse_undefined(event)
        self.lines.append(json.dumps(event, allow_nan=False))
        write_whole(self.folder / "events.jsonl", "\n".join(self.lines) + "\n")
        self.sampled(state)
        state = self.steered(state, {**reported, **scores}, plan.cel_acts)
        run_folder.save_state(self.folder, state)
        if state.round < self.settings.rounds and not self.converged:
            self.asking(state.round + 1)
        self.tell(event)
        return state

    def asking(self, number: int) -> None:
        """Note, before they are asked, that holders send noisy updates in this round.

        What a run that was stopped had asked for stays: a round begun again is paid for again.
        """
        if self.settings.update.noise:
            write_json(self.folder / run_folder.ASKED, [*run_folder.asked(self.folder), number])

    def refuse_undefined(self, event: Event) -> None:
        """Raise DivergedError where a score is not finite, though the model is."""
        if lost := [key for key, value in event.items() if not defined(value)]:
            raise DivergedError(
                f"{', '.join(lost)} are not finite after round {event['round']}, though the model "
                f"is; lower local.rate ({self.settings.local.rate})"
            )

    def sampled(self, state: ServerState) -> None:
        """Keep the model as a posterior sample if its round is one of the chain's.

        Rounds are counted from the last sample; the first round of the chain is one. Where the
        autocorrelation time decides, nothing is kept until it is known.
        """
        apart = self.settings.chain.thin or self.trace.thinning()
        if apart is None or not round_plan.kept(self.settings, state.round):
            return
        kept = self.chain.rounds()
        if not kept or state.round - kept[-1] >= apart:
            self.chain.keep(state.round, state.model)

    @property
    def converged(self) -> bool:
        """Say whether the run may stop: it is asked to, and nothing speaks against convergence."""
        found = self.trace.latest
        return self.settings.chain.stop and found is not None and found.passes

    def steered(self, state: ServerState, measured: Mapping[str, float], acts: bool) -> ServerState:
        """Return the state with an adaptive threshold moved, if the loss acted in the round.

        One that follows the accuracy waits until the ramp's end: early on, the model is merely
        young, and a threshold that rose for it would have to come all the way back.
        """
        cel = self.settings.cel
        young = cel.target == "accuracy" and state.round < cel.ramp * self.settings.rounds
        burnt = state.round > burn_in_rounds(self.settings)  # the chain's target stays
        if not (state.control and acts) or young or burnt:
            return state
        control = adaptive_threshold.next_threshold(state.control, measured, cel)
        return state._replace(control=control)

    def validate(self, state: ServerState) -> tuple[dict[str, float], Float[Tensor, " F"]]:
        """Return the scores on the validation set, and the functionals the chain is judged by.

        Those are the log-likelihood and the label's centred logit of the first images.
        """
        x, y = self.splits.validation
        stream = generator(self.settings.seed, "validation", state.round)
        self.flat.load(state.model)
        with torch.no_grad():
            z = self.flat.net.encode(x)
            logits = self.flat.net.answer(self.flat.net.add_noise(z, stream))
            probes = self.flat.net.answer(z[: self.settings.chain.probes])
        if not logits.isfinite().all():
            raise DivergedError(
                f"the model's answers are not finite after round {state.round}; lower local.rate "
                f"({self.settings.local.rate}), or set strategy.max-norm"
            )
        spread = float(calibration.within_class_spread(z, y))
        scores = calibration.scores(logits.softmax(1), y)
        centred = probes - probes.mean(1, keepdim=True)
        seen = centred.gather(1, y[: len(probes), None])[:, 0]
        functionals = torch.cat([-logits.new_tensor([scores["nll"]]), seen])
        return {**scores, "within-class-spread": spread}, functionals

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


def defined(value: object) -> bool:
    """Say whether a value is no number, or a finite one."""
    return not isinstance(value, float) or math.isfinite(value)


def told(diagnosis: Diagnosis) -> Event:
    """Return what the log says of a chain."""
    return {"r-hat": diagnosis.r_hat, "ess": diagnosis.ess, "geweke": diagnosis.geweke}
