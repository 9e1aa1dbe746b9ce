"""The server's side of a run, whichever engine carries the messages."""

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.data import Images, Splits
from fedcel.errors import DivergedError
from fedcel.federation import (
    ClientUpdate,
    Event,
    RoundReport,
    RoundRequest,
    Scores,
    ServerState,
    add_mean_gradient,
    begin_round,
    describe_round,
    finish_round,
    init_net,
    init_server_state,
    is_sample_due,
    may_stop,
    move_threshold,
)
from fedcel.metrics import calibration, within_class_spread
from fedcel.nets import FlatNet
from fedcel.posterior import is_kept
from fedcel.runs import run_folder
from fedcel.runs.round_log import RoundLog
from fedcel.seeding import make_generator
from fedcel.settings import Settings

ShowRound = Callable[[Event], None]
"""Shows a round's event to people."""


@runtime_checkable
class Clients(Protocol):
    """Whoever trains the clients of a round; results come in the order of `request.weights`."""

    def compute_gradients(self, request: RoundRequest) -> Iterable[tuple[int, Float[Tensor, " P"]]]:
        """Yield each client and its mean gradient at the model."""
        ...

    def train(self, request: RoundRequest) -> Iterable[ClientUpdate]:
        """Yield each client's update; its state is remembered."""
        ...


class ServerRun:
    """Trains one run: its state, its files, and what follows from each round.

    Engines that train clients by function calls use `play_round`. Flower's strategy takes the same
    steps, `begin_round` and `finish_round`, around its messages, then `conclude_round`.
    """

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        splits: Splits,
        show_round: ShowRound,
        *,
        resume: bool = False,
    ) -> None:
        """Begin a run in its folder, or go on with the last complete round.

        Args:
            folder: Made by `create_run`.
            settings: Of the run.
            splits: Its images.
            show_round: Is told of every round.
            resume: Go on; whatever was written after the last complete round is forgotten.

        Raises:
            RunError: What is there is damaged.
        """
        self.settings, self.splits, self._show_round = settings, splits, show_round
        self.flat = init_net(settings, splits)
        self.state = init_server_state(self.flat.vector, settings, self.flat.net, splits.classes)
        self._log = RoundLog(folder, settings)
        if resume:
            self.state = run_folder.read_state(folder, self.state)
        self._log.forget_after(self.state.round)
        self._trace = run_folder.open_trace(folder, self.state.round)
        self._clock = time.perf_counter()
        self._note_next_round()

    @property
    def is_over(self) -> bool:
        """Say whether all rounds are done, or the chain may stop."""
        return self.state.round >= self.settings.rounds or self.has_converged

    @property
    def has_converged(self) -> bool:
        """Say whether the run may stop before its last round."""
        return may_stop(self.settings, self._trace.latest)

    def play_round(self, clients: Clients, examples: Mapping[int, int]) -> None:
        """Play one round from the selection of clients to the log.

        Args:
            clients: Train the clients.
            examples: Partition -> N_k of all clients.
        """
        request = begin_round(self.settings, self.state, examples)
        if request.plan.control == "fresh":
            request = add_mean_gradient(request, dict(clients.compute_gradients(request)))
        updates = clients.train(request)
        state, report = finish_round(self.settings, self.state, request, updates, cut=self.flat.cut)
        self.conclude_round(state, report)

    def conclude_round(self, state: ServerState, report: RoundReport) -> ServerState:
        """Score the new model, log the round, and decide what follows from it.

        Args:
            state: After the round.
            report: Who took part.

        Returns:
            What the next round starts from.

        Raises:
            DivergedError: The model, its answers or a score are not finite; nothing is written.
        """
        settings, number = self.settings, state.round
        scores = score_model(settings, self.flat, self.splits.validation, state)
        diagnosis = None
        if is_kept(settings, number):
            diagnosis = self._trace.add(number, scores.functionals)
        now = time.perf_counter()
        event = describe_round(
            settings,
            state,
            report,
            scores,
            classes=self.splits.classes,
            diagnosis=diagnosis,
            seconds=now - self._clock,
        )
        self._clock = now
        self._log.write_event(event)
        if is_kept(settings, number):
            self._log.write_functionals(self._trace.rounds, self._trace.rows)
        if is_sample_due(settings, number, self._log.chain.rounds(), self._trace.thinning()):
            self._log.write_sample(state)
        self.state = move_threshold(settings, state, report, scores)
        self._log.write_state(self.state)
        self._note_next_round()
        self._show_round(event)
        return self.state

    def close(self) -> None:
        """Write the last global model."""
        self._log.write_model(self.state)

    def _note_next_round(self) -> None:
        """Note that the next round's noisy updates are asked for, if there is one."""
        if self.settings.update.noise and not self.is_over:
            self._log.write_asked_round(self.state.round + 1)


def score_model(settings: Settings, flat: FlatNet, images: Images, state: ServerState) -> Scores:
    """Score a round's model on validation images.

    The functionals by which a chain is judged are the log-likelihood and the label's centred logit
    of the first images.

    Args:
        settings: Of the run.
        flat: The net to work with; its parameters do not matter.
        images: The server's validation images.
        state: After the round.

    Raises:
        DivergedError: The model or its answers are not finite.
    """
    if not state.model.isfinite().all():
        raise DivergedError(
            f"the model is not finite after round {state.round}; lower local.rate "
            f"({settings.local.rate})"
        )
    x, y = images
    stream = make_generator(settings.seed, "validation", state.round)
    flat.load(state.model)
    with torch.no_grad():
        z = flat.net.encode(x)
        logits = flat.net.answer(flat.net.add_noise(z, stream))
        probes = flat.net.answer(z[: settings.chain.probes])
    if not logits.isfinite().all():
        raise DivergedError(
            f"the model's answers are not finite after round {state.round}; lower local.rate "
            f"({settings.local.rate}), or set strategy.max-norm"
        )
    metrics = calibration.score_probabilities(logits.softmax(1), y)
    metrics["within-class-spread"] = float(within_class_spread(z, y))
    centred = probes - probes.mean(1, keepdim=True)
    label_logits = centred.gather(1, y[: len(probes), None])[:, 0]
    functionals = torch.cat([-logits.new_tensor([metrics["nll"]]), label_logits])
    return Scores(metrics, functionals)
