"""The loop engine: clients trained by function calls, here or in other processes."""

import time
from pathlib import Path

import torch

from clients.flower import client_round
from fedcel.data import load
from fedcel.federation import aggregation, robust_aggregation, server_round
from fedcel.federation.aggregation import ServerState
from fedcel.posterior import round_plan
from fedcel.runs import run_folder
from fedcel.runs.evaluation import outcome, store
from fedcel.runs.round_log import Journal, Tell
from fedcel.settings.parsing import OWN_STRATEGY, Settings
from sims.engines import in_memory_grid
from sims.engines.worker_pool import Answer, Crew, Round, crew


def train(
    settings: Settings, folder: Path, tell: Tell, resume: bool = False, measure: bool = True
) -> None:
    """Train into the run folder; unless `measure` is off, measure the result on the test set.

    Another strategy than `posterior` trains over nodes that are function calls.
    """
    if settings.strategy.name != OWN_STRATEGY:
        in_memory_grid.train(settings, folder, tell, resume, measure)
        return
    begin = time.perf_counter()
    splits = load(settings.data, settings.clients, settings.seed)
    flat = client_round.workspace(settings)
    fresh = run_folder.fresh_net(settings, splits)
    journal = Journal(folder, settings, splits, fresh, tell)
    server = journal.resume() if resume else journal.begin()
    examples = {client: len(part.y) for client, part in enumerate(splits.clients)}
    total = sum(examples.values())
    with crew(settings, flat, folder / "state") as everyone:
        while server.round < settings.rounds and not journal.converged:
            taking_part = round_plan.chosen(settings, server.round + 1)
            weights = round_plan.shares(settings, examples, taking_part)
            server, said = heard(settings, flat.cut, server, weights, total, everyone)
            server = journal.record(server, taking_part, [], said)
    journal.close(server)
    if measure:
        seconds = time.perf_counter() - begin
        store(folder, outcome(run_folder.read(folder), seconds))


def heard(
    settings: Settings,
    cut: int,
    server: ServerState,
    weights: dict[int, float],
    total: int,
    everyone: Crew,
) -> tuple[ServerState, dict[str, float]]:
    """Return `one_round`'s state, joined with the clients' class centres, and what they report."""
    server, answers = one_round(settings, cut, server, weights, total, everyone)
    metrics = [answer.update.metrics for answer in answers]
    said = aggregation.mean_metrics(metrics, list(weights.values()))
    centres = [answer.statistics for answer in answers if answer.statistics]
    server, spread = aggregation.join(server, centres, settings.cel.clusters)
    return server, said | spread | aggregation.heaviest(settings, weights.values())


def one_round(
    settings: Settings,
    cut: int,
    server: ServerState,
    weights: dict[int, float],
    total: int,
    everyone: Crew,
) -> tuple[ServerState, list[Answer]]:
    """Return the server's state after a round of these clients, and their answers.

    Deltas are added up as they come, so that memory does not grow with the number of clients; a
    robust rule has to see all of them at once.
    """
    number = server.round + 1
    control = round_plan.plan(settings, number, 1.0, total).control
    whole = sum(weights.values())
    if control == "fresh":
        mean = torch.zeros_like(server.model)
        each = everyone.gradients(weights, server.model, number)
        for own, weight in zip(each, weights.values(), strict=True):
            mean.add_(own, alpha=weight / whole)
        server = server._replace(gradient=mean)
    delta, gradient = torch.zeros_like(server.model), torch.zeros_like(server.model)
    brought = client_round.Brought(
        threshold=server.control.threshold if server.control else None,
        shared=server.shared,
        gradient=server.gradient,
        scale=server_round.step_sizes(server),
    )
    answers, deltas, rule = [], [], settings.strategy
    found = everyone.answers(weights, Round(number, server.model, total, brought))
    for answer, weight in zip(found, weights.values(), strict=True):
        if rule.aggregation == "mean":
            delta.add_(answer.update.delta, alpha=weight)
        else:
            deltas.append(answer.update.delta)
        if control == "stale":
            gradient.add_(answer.update.state[client_round.OWN_GRADIENT], alpha=weight / whole)
        empty = answer.update._replace(delta=torch.empty(0), state={})
        answers.append(answer._replace(update=empty))
    if deltas:
        delta = robust_aggregation.combined(rule, deltas, list(weights.values()))
    server = server_round.advance(settings, server, delta, cut, total)
    return server._replace(gradient=gradient) if control == "stale" else server, answers
