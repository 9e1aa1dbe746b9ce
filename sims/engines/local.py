"""The local engine: clients trained in this process, as many at once as its memory makes fast."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from fedcel.data import load_splits
from fedcel.federation import (
    ClientParts,
    ClientUpdate,
    RoundRequest,
    RoundTrainer,
    StoredState,
    keep_state,
    name_obstacle,
)
from fedcel.run_parts import build_client_parts
from fedcel.runs import (
    ClientStateFolder,
    EventCallback,
    ServerRun,
    evaluate_run,
    missing_states_error,
    partition_folder,
    read_run,
    write_evaluation,
)
from fedcel.settings import OWN_STRATEGY, Settings
from fedcel.tensors import State
from sims import progress
from sims.engines.choose_engine import choose_clients_at_once

_STATES_IN_MEMORY = 256
"""States of clients in memory at once; the others are read from their folders again."""


class ClientStates:
    """The clients' states in their folders, those of the last clients in memory as well."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._states: dict[int, StoredState] = {}

    def require_all(self, request: RoundRequest) -> None:
        """Refuse a round, before it begins, whose clients' states are not all there; RunError."""
        missing = [
            path
            for client in request.weights
            if client not in self._states
            and (path := self._open(client).find_missing(request.state_rounds.get(client)))
        ]
        if missing:
            raise missing_states_error(missing, request.plan.number)

    def load_state(self, client: int, request: RoundRequest) -> StoredState:
        """Return the state that a client starts a round from; RunError where it is not there."""
        expected = request.state_rounds.get(client)
        stored = self._states.get(client)
        if stored is not None and stored.round == expected:
            return stored
        return self._open(client).require_state(request.plan.number, expected)

    def keep_state(
        self,
        client: int,
        number: int,
        update: ClientUpdate,
        start: StoredState,
        *,
        is_noisy: bool,
    ) -> ClientUpdate:
        """Keep a client's state after round `number`, and return its update without it."""
        written = keep_state(self._open(client), number, update.state, start, is_noisy=is_noisy)
        self._states.pop(client, None)
        if written == number:
            self._states[client] = StoredState(number, update.state)  # now the last in their order
        if len(self._states) > _STATES_IN_MEMORY:
            del self._states[next(iter(self._states))]
        return update._replace(state={}, state_round=written)

    def _open(self, client: int) -> ClientStateFolder:
        return ClientStateFolder(partition_folder(self._folder, client), client)


class LocalTrainer:
    """Trains the clients of a round in this process.

    Where they cannot be computed at once they are trained one after the other from then on.

    Args:
        parts: What the clients train with.
        folder: Where the clients' states are kept.
        at_once: Clients computed at once, at most.
        report_obstacle: Is called, once, with the reason for one after the other.
    """

    def __init__(
        self,
        parts: ClientParts,
        folder: Path,
        at_once: int = 1,
        report_obstacle: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._parts, self._states = parts, ClientStates(folder)
        self._report_obstacle, self.at_once = report_obstacle, at_once
        if at_once > 1 and (reason := name_obstacle(parts.schedule.terms())):
            self._train_one_by_one(reason)

    def train(self, request: RoundRequest) -> Iterator[ClientUpdate]:
        """Yield each client's update; its state is kept for its next round."""
        starts: dict[int, StoredState] = {}
        self._states.require_all(request)

        def read_state(client: int) -> State | None:
            starts[client] = self._states.load_state(client, request)
            return starts[client].state

        trainer = RoundTrainer(
            self._parts,
            request,
            read_state=read_state,
            at_once=self.at_once,
            report_obstacle=self._train_one_by_one,
        )
        number, is_noisy = request.plan.number, self._parts.update.noise > 0
        for client, update in zip(request.weights, trainer.train(), strict=True):
            yield self._states.keep_state(
                client, number, update, starts.pop(client), is_noisy=is_noisy
            )

    def _train_one_by_one(self, reason: str) -> None:
        self.at_once = 1
        self._report_obstacle(reason)


def train_locally(
    settings: Settings,
    folder: Path,
    show_round: EventCallback,
    *,
    resume: bool = False,
    measure: bool = True,
) -> None:
    """Train into the run folder, and `measure` the result on the test set.

    Another strategy than `posterior` trains over nodes that are function calls.
    """
    if settings.strategy.name != OWN_STRATEGY:
        _train_in_memory(settings, folder, show_round, resume=resume, measure=measure)
        return
    torch.set_num_threads(1)  # clients' steps are small: threads would wait for each other
    begin = time.perf_counter()
    splits = load_splits(settings.data, settings.clients, settings.seed)
    run = ServerRun(folder, settings, splits, show_round, resume=resume)
    examples = dict(enumerate(splits.client_sizes))
    at_once = choose_clients_at_once(settings)
    trainer = LocalTrainer(build_client_parts(settings), folder / "state", at_once, _print_obstacle)
    while not run.is_over:
        run.play_round(trainer, examples)
    run.close()
    if measure:
        evaluation = evaluate_run(read_run(folder), time.perf_counter() - begin)
        result = evaluation.result | {"engine": "local", "clients-at-once": trainer.at_once}
        write_evaluation(folder, evaluation._replace(result=result))


def _print_obstacle(reason: str) -> None:
    progress.print_line(f"clients are trained one after the other: {reason}")


def _train_in_memory(
    settings: Settings, folder: Path, show_round: EventCallback, *, resume: bool, measure: bool
) -> None:
    """Train by the code of ServerApp and ClientApp, as Ray does, and to the same model."""
    # Seconds that runs without Flower need not wait.
    from clients import make_client_app
    from fedcel.flower_messages import allow_messages
    from sims.engines.simulated_grid import InMemoryGrid
    from strategies.flower_log import filter_log
    from strategies.server_app import train_over_grid

    with filter_log(is_quiet=True), allow_messages():
        grid = InMemoryGrid(make_client_app(settings), settings.clients, folder / "state")
        train_over_grid(grid, settings, folder, show_round, resume=resume, measure=measure)
