"""Who trains the clients of a round: this process, or several with equal answers, one a core."""

import os
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import torch

from clients.flower import client_round
from fedcel.federation.local_update import Update
from fedcel.losses.cel.averaged_centres import Statistics
from fedcel.losses.cel.protocol import State
from fedcel.nets.flat_parameters import FlatNet
from fedcel.runs import client_state
from fedcel.settings.parsing import Settings
from sims.engines.processes import pool

Result = TypeVar("Result")

KEPT = 256
"""States of clients in memory at once; the others are read from their folders again."""


class Round(NamedTuple):
    """What every client of a round is given."""

    number: int
    model: torch.Tensor
    total: int  # images of all clients
    brought: client_round.Brought


class Answer(NamedTuple):
    """What one client gives in a round."""

    update: Update
    statistics: Statistics | None


class Crew(Protocol):
    """Whoever trains clients; both methods yield in the order of the clients asked for."""

    def gradients(
        self, clients: Iterable[int], model: torch.Tensor, number: int
    ) -> Iterator[torch.Tensor]:
        """Yield each client's mean gradient at the model."""

    def answers(self, shares: dict[int, float], given: Round) -> Iterator[Answer]:
        """Yield each client's answer; its state is remembered."""


class Memory:
    """The clients' states in their folders, those of the last clients here as well."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.states: dict[int, State | None] = {}

    def place(self, client: int) -> Path:
        """Return a client's own folder."""
        return self.folder / f"partition-{client:06d}"

    def recall(self, client: int, number: int) -> State | None:
        """Return a client's state from before round `number`."""
        if client in self.states:
            return self.states[client]
        return client_state.read(self.place(client), number)

    def remember(self, client: int, number: int, state: State | None) -> None:
        """Keep a client's state after round `number`."""
        self.states.pop(client, None)
        self.states[client] = state  # now the last in the dictionary's order
        if len(self.states) > KEPT:
            del self.states[next(iter(self.states))]
        if state:
            client_state.save(self.place(client), number, state)


class Here:
    """All clients in this process, one after the other, on one net."""

    def __init__(self, settings: Settings, flat: FlatNet, folder: Path) -> None:
        self.settings, self.flat, self.memory = settings, flat, Memory(folder)

    def gradients(
        self, clients: Iterable[int], model: torch.Tensor, number: int
    ) -> Iterator[torch.Tensor]:
        """Yield each client's mean gradient at the model."""
        for client in clients:
            yield client_round.gradient(self.settings, self.flat, client, model, number)

    def answers(self, shares: dict[int, float], given: Round) -> Iterator[Answer]:
        """Yield each client's answer; its state is remembered."""
        for client, share in shares.items():
            yield one(self.settings, self.flat, self.memory, client, share, given)


class Pool:
    """Clients in other processes, one thread each; no more than two answers a process wait here.

    A process reads a client's state from its folder: the round before may have been another's.
    """

    def __init__(self, settings: Settings, folder: Path, executor: Executor, jobs: int) -> None:
        self.settings, self.folder, self.executor, self.jobs = settings, folder, executor, jobs

    def gradients(
        self, clients: Iterable[int], model: torch.Tensor, number: int
    ) -> Iterator[torch.Tensor]:
        """Yield each client's mean gradient at the model."""
        yield from self._each(gradient_there, self.settings, model, number, items=clients)

    def answers(self, shares: dict[int, float], given: Round) -> Iterator[Answer]:
        """Yield each client's answer; its state is remembered."""
        place = self.folder
        yield from self._each(one_there, self.settings, place, given, items=shares.items())

    def _each(
        self, function: Callable[[bytes, bytes], bytes], *common: object, items: Iterable[object]
    ) -> Iterator[Result]:
        """Yield function(common, item) in the order of the items.

        Pickled here: multiprocessing would pass tensors as open files, of which there are few.
        """
        left, same = iter(items), pickle.dumps(common)

        def begun(count: int) -> list[Future[bytes]]:
            submit = self.executor.submit
            return [submit(function, same, pickle.dumps(item)) for item in islice(left, count)]

        waiting = deque(begun(2 * self.jobs))
        while waiting:
            found = waiting.popleft().result()
            waiting.extend(begun(1))
            yield pickle.loads(found)


@contextmanager
def crew(settings: Settings, flat: FlatNet, folder: Path) -> Iterator[Crew]:
    """Hand out who trains the clients by the engine of the settings; other processes end after.

    `folder` is where the clients' states are kept.
    """
    if settings.engine != "processes":
        yield Here(settings, flat, folder)
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    jobs = min(cores or 1, settings.clients_per_round or settings.clients)
    with pool(jobs) as executor:
        yield Pool(settings, folder, executor, jobs)


def one(
    settings: Settings, flat: FlatNet, memory: Memory, client: int, share: float, given: Round
) -> Answer:
    """Return one client's answer to a round, its state remembered."""
    number, total = given.number, given.total
    state = memory.recall(client, number)
    update = client_round.train(
        settings, flat, client, given.model, number, share, total, state, given.brought
    )
    memory.remember(client, number, update.state)
    return Answer(update, client_round.told(settings, flat, client, update.state, number, total))


def one_there(common: bytes, item: bytes) -> bytes:
    """Return `one` of a client in another process; of its state what the server asks for."""
    settings, folder, given = pickle.loads(common)
    client, share = pickle.loads(item)
    flat = client_round.workspace(settings)
    update, told = one(settings, flat, Memory(folder), client, share, given)
    kept = {k: v for k, v in update.state.items() if k == client_round.OWN_GRADIENT}
    return pickle.dumps(Answer(update._replace(state=kept), told))


def gradient_there(common: bytes, item: bytes) -> bytes:
    """Return a client's mean gradient in another process."""
    settings, model, number = pickle.loads(common)
    flat = client_round.workspace(settings)
    return pickle.dumps(client_round.gradient(settings, flat, pickle.loads(item), model, number))
