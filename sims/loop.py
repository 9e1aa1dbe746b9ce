"""The loop engine: all clients in this process, one after the other, in place."""

import time
from pathlib import Path

import torch

from clients import holder
from fedcel import aggregation, client_state, runs, schedule
from fedcel.aggregation import ServerState
from fedcel.arrays import FlatNet
from fedcel.cel.base import State
from fedcel.data import load
from fedcel.files import write_json
from fedcel.journal import Journal, Tell
from fedcel.outcome import outcome
from fedcel.settings import Settings
from fedcel.training import Update


def train(
    settings: Settings, folder: Path, tell: Tell, resume: bool = False, measure: bool = True
) -> None:
    """Train into the run folder; unless `measure` is off, measure the result on the test set."""
    begin = time.perf_counter()
    splits = load(settings.data, settings.clients, settings.seed)
    flat = holder.workspace(settings)
    fresh = runs.fresh_net(settings, splits)
    journal = Journal(folder, settings, splits, fresh, tell)
    server = journal.resume() if resume else aggregation.start(fresh.vector)
    examples = {client: len(part.y) for client, part in enumerate(splits.clients)}
    memory = Memory(folder / "state", resume)
    while server.round < settings.rounds:
        number = server.round + 1
        taking_part = schedule.chosen(settings, number)
        weights = schedule.shares(settings, examples, taking_part)
        updates = [
            one(settings, flat, client, server, weights[client], sum(examples.values()), memory)
            for client in taking_part
        ]
        shares = list(weights.values())
        deltas = [update.delta for update in updates]
        server = step(settings, server, deltas, shares, flat.cut, sum(examples.values()))
        said = aggregation.mean_metrics([update.metrics for update in updates], shares)
        journal.record(server, taking_part, [], said)
    journal.close(server)
    if measure:
        seconds = time.perf_counter() - begin
        write_json(folder / "result.json", outcome(runs.read(folder), seconds))


class Memory:
    """The clients' states, kept here and written to their folders for a resume."""

    def __init__(self, folder: Path, resume: bool) -> None:
        self.folder = folder
        self.resume = resume
        self.states: dict[int, State | None] = {}

    def place(self, client: int) -> Path:
        """Return a client's own folder."""
        return self.folder / f"partition-{client:06d}"

    def recall(self, client: int, number: int) -> State | None:
        """Return a client's state from before round `number`."""
        if client not in self.states and self.resume:
            self.states[client] = client_state.read(self.place(client), number)
        return self.states.get(client)

    def remember(self, client: int, number: int, state: State | None) -> None:
        """Keep a client's state after round `number`."""
        self.states[client] = state
        if state:
            client_state.save(self.place(client), number, state)


def one(
    settings: Settings,
    flat: FlatNet,
    client: int,
    server: ServerState,
    share: float,
    total: int,
    memory: Memory,
) -> Update:
    """Return one client's update of the next round, its state remembered."""
    number = server.round + 1
    state = memory.recall(client, number)
    update = holder.train(settings, flat, client, server.model, number, share, total, state)
    memory.remember(client, number, update.state)
    return update


def step(
    settings: Settings,
    server: ServerState,
    deltas: list[torch.Tensor],
    weights: list[float],
    cut: int,
    total: int,
) -> ServerState:
    """Return the server's state after the round's deltas."""
    plan = schedule.plan(settings, server.round + 1, 1.0, total)
    mean = aggregation.weighted_sum(deltas, weights)
    s = settings.strategy
    return aggregation.slide(server, mean, s.momentum, s.gain, cut if plan.freeze else 0)
