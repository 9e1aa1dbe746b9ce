"""The local engine: clients trained by function calls in this process."""

import time
from pathlib import Path

import torch

from fedcel.data import load_splits
from fedcel.run_parts import build_client_parts
from fedcel.runs import EventCallback, ServerRun, evaluate_run, read_run, write_evaluation
from fedcel.settings import OWN_STRATEGY, Settings
from sims import progress
from sims.engines.choose_engine import choose_clients_at_once
from sims.engines.client_trainers import LocalTrainer


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
    from fedcel.testing.message_identity import allow_messages
    from sims.engines.simulated_grid import InMemoryGrid
    from strategies.flower_log import filter_log
    from strategies.server_app import train_over_grid

    with filter_log(is_quiet=True), allow_messages():
        grid = InMemoryGrid(make_client_app(settings), settings.clients, folder / "state")
        train_over_grid(grid, settings, folder, show_round, resume=resume, measure=measure)
