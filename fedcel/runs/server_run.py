"""The server's side of a run, whichever engine carries the messages."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.data import Images, Splits
from fedcel.errors import DivergedError
from fedcel.federation import (
    ClientTrainer,
    RoundReport,
    ServerState,
    check_kept_share,
    follow_goal,
    play_round,
)
from fedcel.leakage import SmashedData, optimal_leak
from fedcel.metrics import calibration, within_class_spread
from fedcel.nets import FlatNet
from fedcel.run_parts import build_server_parts, init_net, init_run_state
from fedcel.runs import run_folder
from fedcel.runs.round_log import Event, RoundLog, describe_round
from fedcel.settings import Settings
from fedcel.torch_state import make_generator

BITS_IMAGES = 400
"""Largest number of validation images of which the leak is measured during training."""

PROBES = 16
"""Number of validation images, the first ones, on whose logits a chain is diagnosed."""

EventCallback = Callable[[Event], None]
"""Shows a round's event to people."""


class ServerRun:
    """Trains one run: its state, its files, and what follows from each round.

    Engines that train clients by function calls use `play_round`. Flower's strategy plays the two
    halves of a round around its messages, then comes `conclude_round`.
    """

    def __init__(
        self,
        folder: str | Path,
        settings: Settings,
        splits: Splits,
        show_round: EventCallback,
        *,
        resume: bool = False,
    ) -> None:
        """Begin a run in a folder made by `create_run`, or go on with the last complete round.

        Whatever was written after that round is forgotten. RunError where what is there is damaged.
        """
        folder = Path(folder)
        self.settings, self.splits, self._show_round = settings, splits, show_round
        self.flat = init_net(settings, splits)
        self.parts = build_server_parts(settings, splits.classes)
        self.state = init_run_state(settings, self.flat)
        if resume:
            self.state = run_folder.read_state(folder, self.state)
        self._folder, self._log = folder, RoundLog(folder, self.state.round)
        self._chain = run_folder.open_chain(folder, settings)
        self._chain.delete_after(self.state.round)
        self._trace = run_folder.open_trace(folder, self.state.round)
        self._clock = time.perf_counter()
        self.note_next_round()

    @property
    def is_over(self) -> bool:
        """Whether all rounds are done, or the chain may stop."""
        return self.state.round >= self.settings.rounds or self.has_converged

    @property
    def has_converged(self) -> bool:
        """Whether the run may stop: it is asked to, and nothing speaks against convergence."""
        diagnosis = self._trace.latest
        return self.settings.chain.stop and diagnosis is not None and diagnosis.passes

    def play_round(self, trainer: ClientTrainer, examples: Mapping[int, int]) -> None:
        """Play one round from the selection of clients, with N_k `examples`, to the log."""
        self.conclude_round(
            *play_round(
                self.parts, self.state, examples, trainer, device_size=self.flat.device_size
            )
        )

    def conclude_round(self, state: ServerState, report: RoundReport) -> ServerState:
        """Score the new model, log the round, and return what the next round starts from.

        Raises:
            DivergedError: The model, its answers or a score are not finite; nothing is written.
            RoundError: Too many clients were left out; nothing is written.
        """
        settings, parts, number = self.settings, self.parts, state.round
        check_kept_share(report, parts.least_share, number)
        metrics, functionals = score_model(settings, self.flat, self.splits.validation, state)
        if settings.bits_every and number % settings.bits_every == 0:
            metrics.update(measure_bits(settings, self.flat, self.splits.validation, number))
        is_candidate = parts.schedule.gives_sample(number)
        diagnosis = None
        if is_candidate:
            diagnosis = self._trace.add(number, functionals)
        now = time.perf_counter()
        event = describe_round(
            state,
            report,
            metrics,
            diagnosis=diagnosis,
            seconds=now - self._clock,
        )
        self._clock = now
        self._log.write_event(event)
        if is_candidate:
            self._trace.write()
            sampled = self._chain.list_rounds()
            if settings.chain.is_sample_due(number, sampled, self._trace.autocorrelation):
                self._chain.write_sample(number, state.model)
        measured = dict(metrics)
        if report.spread is not None:
            measured["spread"] = report.spread
        self.state = follow_goal(parts, state, measured, report.plan)
        # Last of a round's files: what a resumed run goes on from is never ahead of the others.
        run_folder.write_state(self._folder, self.state)
        self.note_next_round()
        self._show_round(event)
        return self.state

    def close(self) -> None:
        """Write the last global model."""
        run_folder.write_model(self._folder, self.state)

    def note_next_round(self) -> None:
        """Note that the next round's noisy updates are requested, if there is one."""
        if self.settings.update.noise and not self.is_over:
            run_folder.write_requested_round(self._folder, self.state.round + 1)


def score_model(
    settings: Settings, flat: FlatNet, images: Images, state: ServerState
) -> tuple[dict[str, float], Float[Tensor, " F"]]:
    """Return metrics of a round's model on validation images, and the chain's functionals.

    The functionals, by which its convergence is judged, are the log-likelihood and the label's
    centred logit of the first images. The parameters of `flat` are replaced.

    Raises:
        DivergedError: The model or its answers are not finite.
    """
    if not state.model.isfinite().all():
        raise DivergedError(
            f"the model is not finite after round {state.round}; lower local.rate "
            f"({settings.local.step_size.rate}), or set local.clip=1"
        )
    x, y = images
    stream = make_generator(settings.seed, "validation", state.round)
    flat.load(state.model)
    with torch.no_grad():
        z = flat.net.encode_all(x)
        logits = flat.net.answer(flat.net.add_noise(z, stream))
        probes = flat.net.answer(z[:PROBES])
    if not logits.isfinite().all():
        raise DivergedError(
            f"the model's answers are not finite after round {state.round}; lower local.rate "
            f"({settings.local.step_size.rate}), or set local.clip=1"
        )
    metrics = calibration.score_probabilities(logits.softmax(1), y)
    metrics["within-class-spread"] = float(within_class_spread(z, y))
    centred = probes - probes.mean(1, keepdim=True)
    label_logits = centred.gather(1, y[: len(probes), None])[:, 0]
    return metrics, torch.cat([-logits.new_tensor([metrics["nll"]]), label_logits])


def measure_bits(
    settings: Settings, flat: FlatNet, images: Images, number: int
) -> dict[str, float]:
    """Measure what the best possible attacker learns of validation images in this round.

    By the keys of the log: bits beyond the label, the half width of their 95 % interval over the
    noise drawn, and all that there is to learn of the first `BITS_IMAGES`. The figure of the
    finished run is another, of test images, of which there may be more to tell apart.
    """
    stream = make_generator(settings.seed, "round-bits", number)
    x, y = (tensor[:BITS_IMAGES] for tensor in images)
    leak = optimal_leak(SmashedData(flat.net), x, y, stream)
    return {
        "bits-beyond-label": leak.bits_beyond_label,
        "bits-half-width": leak.beyond_noise_half_width,
        "bits-cap": leak.cap_beyond_label,
    }
