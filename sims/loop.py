"""The loop engine: all clients in this process, one after the other, in place."""

import time
from pathlib import Path
from typing import NamedTuple

import torch

from clients import holder
from fedcel import aggregation, client_state, robust, rounds, runs, schedule
from fedcel.aggregation import ServerState
from fedcel.arrays import FlatNet
from fedcel.cel.base import State
from fedcel.cel.shared import Statistics
from fedcel.data import load
from fedcel.files import write_json
from fedcel.journal import Journal, Tell
from fedcel.outcome import outcome
from fedcel.settings import OWN_STRATEGY, Settings
from fedcel.training import Update
from sims import inprocess


def train(
    settings: Settings, folder: Path, tell: Tell, resume: bool = False, measure: bool = True
) -> None:
    """Train into the run folder; unless `measure` is off, measure the result on the test set.

    Another strategy than `posterior` trains over nodes that are function calls.
    """
    if settings.strategy.name != OWN_STRATEGY:
        inprocess.train(settings, folder, tell, resume, measure)
        return
    begin = time.perf_counter()
    splits = load(settings.data, settings.clients, settings.seed)
    flat = holder.workspace(settings)
    fresh = runs.fresh_net(settings, splits)
    journal = Journal(folder, settings, splits, fresh, tell)
    server = journal.resume() if resume else journal.begin()
    examples = {client: len(part.y) for client, part in enumerate(splits.clients)}
    memory, total = Memory(folder / "state"), sum(examples.values())
    while server.round < settings.rounds and not journal.converged:
        number = server.round + 1
        taking_part = schedule.chosen(settings, number)
        weights = schedule.shares(settings, examples, taking_part)
        server, answers = one_round(settings, flat, server, weights, total, memory)
        shares = list(weights.values())
        said = aggregation.mean_metrics([answer.update.metrics for answer in answers], shares)
        told = [answer.statistics for answer in answers if answer.statistics]
        server, spread = aggregation.join(server, told, settings.cel.clusters)
        server = journal.record(server, taking_part, [], said | spread)
    journal.close(server)
    if measure:
        seconds = time.perf_counter() - begin
        write_json(folder / "result.json", outcome(runs.read(folder), seconds))


class Answer(NamedTuple):
    """What one client gives in a round."""

    update: Update
    statistics: Statistics | None


KEPT = 256
"""States of clients in memory at once; the others are read from their folders again."""


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


def one(
    settings: Settings,
    flat: FlatNet,
    client: int,
    server: ServerState,
    share: float,
    total: int,
    memory: Memory,
    brought: holder.Brought,
) -> Answer:
    """Return one client's answer to the next round, its state remembered."""
    number = server.round + 1
    state = memory.recall(client, number)
    update = holder.train(
        settings, flat, client, server.model, number, share, total, state, brought
    )
    memory.remember(client, number, update.state)
    return Answer(update, holder.told(settings, flat, client, update.state, number, total))


def one_round(
    settings: Settings,
    flat: FlatNet,
    server: ServerState,
    weights: dict[int, float],
    total: int,
    memory: Memory,
) -> tuple[ServerState, list[Answer]]:
    """Return the server's state after a round of these clients, and their answers.

    Deltas are added up as they come, so that memory does not grow with the number of clients; a
    robust rule has to see all of them at once.
    """
    number = server.round + 1
    control = schedule.plan(settings, number, 1.0, total).control
    whole = sum(weights.values())
    if control == "fresh":
        mean = torch.zeros_like(server.model)
        for client, weight in weights.items():
            own = holder.gradient(settings, flat, client, server.model, number)
            mean.add_(own, alpha=weight / whole)
        server = server._replace(gradient=mean)
    delta, gradient = torch.zeros_like(server.model), torch.zeros_like(server.model)
    brought = holder.Brought(
        threshold=server.control.threshold if server.control else None,
        shared=server.shared,
        gradient=server.gradient,
        scale=rounds.step_sizes(server),
    )
    answers, deltas, rule = [], [], settings.strategy
    for client, weight in weights.items():
        answer = one(settings, flat, client, server, weight, total, memory, brought)
        if rule.aggregation == "mean":
            delta.add_(answer.update.delta, alpha=weight)
        else:
            deltas.append(answer.update.delta)
        if control == "stale":
            gradient.add_(answer.update.state[holder.OWN_GRADIENT], alpha=weight / whole)
        empty = answer.update._replace(delta=torch.empty(0), state={})
        answers.append(answer._replace(update=empty))
    if deltas:
        delta = robust.combined(rule, deltas, list(weights.values()))
    server = rounds.advance(settings, server, delta, flat.cut, total)
    return server._replace(gradient=gradient) if control == "stale" else server, answers
