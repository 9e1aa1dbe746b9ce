"""Who trains the clients of a round: this process, one by one or at once, or one process a core.

Results of the first and the last are equal to the bit, those of clients at once up to rounding of
each step, which a strong loss at a high rate may multiply.
"""

import os
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

import torch

from fedcel.federation import (
    ClientUpdate,
    RoundInputs,
    RoundRequest,
    compute_client_gradient,
    find_obstacle,
    update_client,
    update_clients,
)
from fedcel.losses.cel import State
from fedcel.runs import ClientStateFolder, StoredState, keep_state, partition_folder
from fedcel.settings import Settings
from sims import progress
from sims.engines.choose_engine import choose_engine
from sims.engines.process_pool import open_pool

Result = TypeVar("Result")

_STATES_IN_MEMORY = 256
"""States of clients in memory at once; the others are read from their folders again."""


class ClientStates:
    """The clients' states in their folders, those of the last clients in memory as well."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._states: dict[int, StoredState] = {}

    def load_state(self, client: int, request: RoundRequest) -> StoredState:
        """Return the state that a client starts a round from; RunError where it is not there."""
        expected = request.state_rounds.get(client)
        stored = self._states.get(client)
        if stored is not None and stored.round == expected:
            return stored
        return self._open(client).require_state(request.inputs.round_number, expected)

    def keep_state(
        self, client: int, number: int, update: ClientUpdate, start: StoredState
    ) -> ClientUpdate:
        """Keep a client's state after round `number`, and return its update without it."""
        written = keep_state(self._open(client), number, update.state, start)
        self._states.pop(client, None)
        if written == number:
            self._states[client] = StoredState(number, update.state)  # now the last in their order
        if len(self._states) > _STATES_IN_MEMORY:
            del self._states[next(iter(self._states))]
        return update._replace(state={}, state_round=written)

    def _open(self, client: int) -> ClientStateFolder:
        return ClientStateFolder(partition_folder(self._folder, client))


class SequentialTrainer:
    """Trains all clients in this process, one after the other.

    Args:
        settings: The run's settings.
        folder: Where the clients' states are kept.
    """

    engine = "loop"

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings, self._states = settings, ClientStates(folder)

    def compute_gradients(self, request: RoundRequest) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield each client and its mean gradient at the model."""
        for client in request.weights:
            yield client, _compute_gradient(self._settings, request.inputs, client)

    def train(self, request: RoundRequest) -> Iterator[ClientUpdate]:
        """Yield each client's update; its state is kept for its next round."""
        for client in request.weights:
            yield _train_with_state(self._settings, self._states, request, client)


class BatchedTrainer:
    """Trains clients in this process, as many at once as leave its memory fast.

    Where they cannot be computed at once they are trained one after the other from then on.

    Args:
        settings: The run's settings.
        folder: Where the clients' states are kept.
        fall_back: Is called, once, with the reason for that.
    """

    def __init__(self, settings: Settings, folder: Path, fall_back: Callable[[str], None]) -> None:
        self._settings, self._states = settings, ClientStates(folder)
        self._fall_back, self._folder = fall_back, folder
        self._sequential: SequentialTrainer | None = None
        self._has_batched = False
        if reason := find_obstacle(settings):
            self._train_sequentially(reason)

    @property
    def engine(self) -> str:
        """By which engine clients were trained, for the run's result."""
        if self._sequential is None:
            return "batched"
        return "batched, then loop" if self._has_batched else self._sequential.engine

    def compute_gradients(self, request: RoundRequest) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield each client and its mean gradient at the model."""
        for client in request.weights:
            yield client, _compute_gradient(self._settings, request.inputs, client)

    def train(self, request: RoundRequest) -> Iterator[ClientUpdate]:
        """Yield each client's update; its state is kept for its next round."""
        if self._sequential is not None:
            yield from self._sequential.train(request)
            return
        starts: dict[int, StoredState] = {}

        def read_state(client: int) -> State | None:
            starts[client] = self._states.load_state(client, request)
            return starts[client].state

        updates = update_clients(
            self._settings,
            request.weights,
            request.inputs,
            read_state=read_state,
            fall_back=self._train_sequentially,
        )
        for client, update in zip(request.weights, updates, strict=True):
            yield self._states.keep_state(
                client, request.inputs.round_number, update, starts.pop(client)
            )
        self._has_batched |= self._sequential is None

    def _train_sequentially(self, reason: str) -> None:
        """Leave the later rounds to a trainer of one client after the other."""
        if self._sequential is None:
            self._sequential = SequentialTrainer(self._settings, self._folder)
            self._fall_back(reason)


class PooledTrainer:
    """Trains clients in other processes; no more than two updates a process wait here.

    A process reads a client's state from its folder: the round before may have been another's.

    Args:
        settings: The run's settings.
        folder: Where the clients' states are kept.
        executor: The executor of the processes, which have one thread each.
        jobs: How many processes there are.
    """

    engine = "processes"

    def __init__(self, settings: Settings, folder: Path, executor: Executor, jobs: int) -> None:
        self._settings, self._folder, self._executor, self._jobs = settings, folder, executor, jobs

    def compute_gradients(self, request: RoundRequest) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield each client and its mean gradient at the model."""
        common = self._settings, request.inputs
        gradients: Iterator[torch.Tensor] = self._map(_compute_in_worker, common, request.weights)
        yield from zip(request.weights, gradients, strict=True)

    def train(self, request: RoundRequest) -> Iterator[ClientUpdate]:
        """Yield each client's update; its state is kept for its next round."""
        common = self._settings, self._folder, request
        yield from self._map(_train_in_worker, common, request.weights)

    def _map(
        self,
        function: Callable[[bytes, bytes], bytes],
        common: tuple[object, ...],
        items: Iterable[object],
    ) -> Iterator[Result]:
        """Yield function(common, item) in the order of the items.

        Pickled here: multiprocessing would pass tensors as open files, of which there are few.
        """
        remaining = iter(items)
        packed = pickle.dumps(common)

        def submit(count: int) -> list[Future[bytes]]:
            batch = islice(remaining, count)
            return [self._executor.submit(function, packed, pickle.dumps(item)) for item in batch]

        waiting = deque(submit(2 * self._jobs))
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(submit(1))
            yield pickle.loads(result)


@contextmanager
def open_trainer(
    settings: Settings, folder: Path
) -> Iterator[SequentialTrainer | BatchedTrainer | PooledTrainer]:
    """Open the trainer of the settings' engine; its other processes end on exit.

    Args:
        settings: The run's settings.
        folder: Where the clients' states are kept.
    """
    engine = choose_engine(settings)
    if engine == "batched":
        yield BatchedTrainer(settings, folder, partial(_print_fallback, settings.engine))
        return
    if engine != "processes":
        yield SequentialTrainer(settings, folder)
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    jobs = min(cores or 1, settings.clients_per_round or settings.clients)
    with open_pool(jobs) as executor:
        yield PooledTrainer(settings, folder, executor, jobs)


def _print_fallback(engine: str, reason: str) -> None:
    progress.print_line(f"engine {engine}: clients are trained one after the other: {reason}")


def _compute_gradient(settings: Settings, inputs: RoundInputs, client: int) -> torch.Tensor:
    return compute_client_gradient(settings, client, inputs.model, inputs.round_number)


def _train_with_state(
    settings: Settings, states: ClientStates, request: RoundRequest, client: int
) -> ClientUpdate:
    """Return one client's update without its state, which is kept."""
    start, weight = states.load_state(client, request), request.weights[client]
    update = update_client(settings, client, weight, request.inputs, state=start.state)
    return states.keep_state(client, request.inputs.round_number, update, start)


def _train_in_worker(common: bytes, item: bytes) -> bytes:
    """Return one client's update, computed in another process."""
    torch.set_num_threads(1)  # there is a process for each core
    settings, folder, request = pickle.loads(common)
    update = _train_with_state(settings, ClientStates(folder), request, pickle.loads(item))
    return pickle.dumps(update._replace(model=torch.empty(0)))


def _compute_in_worker(common: bytes, item: bytes) -> bytes:
    """Return one client's mean gradient, computed in another process."""
    torch.set_num_threads(1)
    settings, inputs = pickle.loads(common)
    return pickle.dumps(_compute_gradient(settings, inputs, pickle.loads(item)))
