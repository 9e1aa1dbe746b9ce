"""The loop engine: all clients in this process, one after the other, in place."""

import time
from pathlib import Path

import torch

from clients import holder
from fedcel import aggregation, client_state, runs, schedule
from fedcel.aggregation import ServerState
from fedcel.cel.base import State
from fedcel.data import load
from fedcel.files import write_json
from fedcel.journal import Journal, Tell
from fedcel.outcome import outcome
from fedcel.settings import Settings


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
    memory: dict[int, State | None] = {}
    while server.round < settings.rounds:
        number = server.round + 1
        taking_part = schedule.chosen(settings, number)
        weights = schedule.shares(settings, examples, taking_part)
        deltas, said = [], []
        for client in taking_part:
            place = folder / "state" / f"partition-{client:06d}"
            if client not in memory:
                memory[client] = client_state.read(place, number) if resume else None
            update = holder.train(
                settings,
                flat,
                client,
                server.model,
                number,
                weights[client],
                sum(examples.values()),
                memory[client],
            )
            memory[client] = update.state
            if update.state:
                client_state.save(place, number, update.state)
            deltas.append(update.delta)
            said.append(update.metrics)
        server = step(
            settings, server, deltas, list(weights.values()), flat.cut, sum(examples.values())
        )
        journal.record(
            server, taking_part, [], aggregation.mean_metrics(said, list(weights.values()))
        )
    journal.close(server)
    if measure:
        seconds = time.perf_counter() - begin
        write_json(folder / "result.json", outcome(runs.read(folder), seconds))


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
