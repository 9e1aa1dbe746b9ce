"""The local engine: clients trained in this process, as many at once as its memory makes fast."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

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
from fedcel.torch_state import one_thread
from sims import progress
from sims.engines.choose_engine import choose_clients_at_once

_STATES_IN_MEMORY = 256
"""States of clients in memory at once; the others are read from their folders again."""


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
        self._parts, self._folder = parts, folder
        self._states: dict[int, StoredState] = {}
        self._report_obstacle, self.at_once = report_obstacle, at_once
        if at_once > 1 and (reason := name_obstacle(parts.schedule.terms())):
            self._train_one_by_one(reason)

    def train(self, request: RoundRequest) -> Iterator[ClientUpdate]:
        """Yield each client's update; its state is kept for its next round.

        RunError, before the round begins, where the clients' states are not all there.
        """
        number, expected = request.plan.number, request.state_rounds
        folders = {
            client: ClientStateFolder(partition_folder(self._folder, client), client)
            for client in request.weights
        }
        missing = [
            path
            for client, folder in folders.items()
            if client not in self._states and (path := folder.find_missing(expected.get(client)))
        ]
        if missing:
            raise missing_states_error(missing, number)
        starts: dict[int, StoredState] = {}

        def read_state(client: int) -> State | None:
            start = self._states.get(client)
            if start is None or start.round != expected.get(client):
                start = folders[client].require_state(number, expected.get(client))
            starts[client] = start
            return start.state

        trainer = RoundTrainer(
            self._parts,
            request,
            read_state=read_state,
            at_once=self.at_once,
            report_obstacle=self._train_one_by_one,
        )
        is_noisy = self._parts.update.noise > 0
        for client, update in zip(request.weights, trainer.train(), strict=True):
            start, folder = starts.pop(client), folders[client]
            stored = keep_state(folder, number, update.state, start, is_noisy=is_noisy)
            self._states.pop(client, None)
            if stored.round == number:  # it becomes the last in their order
                self._states[client] = stored
            if len(self._states) > _STATES_IN_MEMORY:
                del self._states[next(iter(self._states))]
            yield update._replace(state={}, state_round=stored.round)

    def _train_one_by_one(self, reason: str) -> None:
        self.at_once = 1
        self._report_obstacle(reason)


@one_thread()  # clients' steps are small: threads would wait for each other
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
