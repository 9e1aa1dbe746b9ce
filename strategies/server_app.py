"""The Flower ServerApp: settings, strategy, rounds, evaluation."""

import os
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedcel.check_parts import build_parts
from fedcel.data import FileSource, load_splits
from fedcel.errors import FedcelError, RoundError, RunError, describe_unforeseen, escape_controls
from fedcel.federation import record_names
from fedcel.nets import to_arrays, to_vector
from fedcel.own_parts import list_own_parts
from fedcel.runs import (
    Event,
    EventCallback,
    ServerRun,
    evaluate_run,
    open_run,
    read_run,
    read_settings,
    write_evaluation,
)
from fedcel.settings import CONNECTED_NODES, OWN_STRATEGY, UNSET, Settings, parse_run_config
from strategies.build_strategy import build_strategy
from strategies.check_strategy import blame_strategy, check_strategy
from strategies.flower_log import conclude_log, filter_log
from strategies.node_registry import count_nodes
from strategies.posterior_strategy import PosteriorStrategy
from strategies.stock_strategy import StockStrategy


class _ConvergedError(Exception):
    """Ends Flower's loop over rounds, which has no other way out, when the chain may stop."""


class RoundObserver:
    """Concludes each round as Flower ends it."""

    def __init__(self, strategy: PosteriorStrategy | StockStrategy, run: ServerRun) -> None:
        self._strategy, self._run, self._first_round = strategy, run, run.state.round

    def conclude_round(self, number: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Take round `number` of this call, 0 before the first, as Flower's `evaluate_fn`."""
        strategy = self._strategy
        if number:
            model = strategy.state.model.numpy()
            is_played = strategy.state.round == self._first_round + number
            returned = to_vector(arrays.to_numpy_ndarrays())
            if not (is_played and np.array_equal(returned, model, equal_nan=True)):
                name = f"{type(strategy).__name__}.aggregate_train"
                raise RoundError(
                    f"{name} did not play the round, or returned another model than it made: "
                    "return what super().aggregate_train returns, or override fault and step"
                )
            strategy.state = self._run.conclude_round(strategy.state, strategy.report)
        if self._run.has_converged:  # in round 0: it was stopped after its last one
            raise _ConvergedError
        return None


def train_over_grid(
    grid: Grid,
    settings: Settings,
    folder: Path,
    show_round: EventCallback,
    *,
    resume: bool = False,
    recount: bool = False,
    measure: bool = True,
    decisions: Mapping[str, int | str] | None = None,
) -> None:
    """Train into a folder made by `create_run` over a grid of nodes.

    Args:
        grid: Carries the messages.
        settings: The run's settings.
        folder: The run's folder.
        show_round: Is called with every round's event.
        resume: Go on with the last complete round.
        recount: Nodes may hold other numbers of images than before the run was resumed.
        measure: Measure the result on the test set, too.
        decisions: What the run config left to the server, as nodes are told.

    Raises:
        RunError: The folder is damaged, or the strategy cannot resume.
        FedcelError: Whatever else keeps the run from its end.
    """
    begin = time.perf_counter()
    splits = load_splits(settings.data, settings.clients, settings.seed)
    run = ServerRun(folder, settings, splits, show_round, resume=resume)
    strategy = build_strategy(settings, run.state, run.flat.shapes, run.flat.device_size)
    if resume and not isinstance(strategy, PosteriorStrategy):
        raise RunError(f"{settings.strategy.name} keeps no state of its own and cannot resume")
    requirements = ConfigRecord(
        {record_names.SHAPE: list(splits.shape), record_names.CLASSES: splits.classes}
    )
    requirements.update(decisions or {})
    if names := settings.data.source.list_classes():
        requirements[record_names.CLASS_NAMES] = names
    if isinstance(strategy, PosteriorStrategy):
        strategy.recount = recount
        strategy.note_repeat = run.note_next_round
    quiet = filter_log(first_round=run.state.round)
    with blame_strategy(settings), suppress(_ConvergedError), quiet:
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(to_arrays(run.state.model, run.flat.shapes)),
            num_rounds=settings.rounds - run.state.round,
            timeout=settings.strategy.timeout,
            train_config=requirements,
            evaluate_fn=RoundObserver(strategy, run).conclude_round,
        )
    run.close()
    if not measure:
        return
    evaluation = evaluate_run(read_run(folder), time.perf_counter() - begin)
    if strategy.registry.has_node_data:
        # They would be those of images nobody trained on.
        evaluation.result["between-client-spread"] = None
        evaluation.result["smallest-update-images"] = None
    if isinstance(strategy, StockStrategy) and strategy.unrepeatable:
        evaluation.result["unrepeatable"] = strategy.unrepeatable
    write_evaluation(folder, evaluation)


def print_event(event: Event) -> None:
    """Print a line about a round into a plain log."""
    print(
        f"round {event['round']}: accuracy {event['accuracy']:.3f}, "
        f"spread {event['within-class-spread']:.4f}, {event['seconds']:.2f} s",
        flush=True,
    )


class RunPlan(NamedTuple):
    """Contents of a run config."""

    settings: Settings
    folder: Path
    resume: bool
    recount: bool
    decisions: dict[str, int | str]
    """Settings that it left to the server."""


def make_server_app() -> ServerApp:
    """Make the ServerApp, which reads settings and the run's folder from the run config.

    Returns:
        The app for `flwr run` or a simulation of Flower's.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            plan = read_plan(grid, context)
            if list_own_parts(plan.settings):  # before a node is asked
                flat = build_parts(plan.settings)
                if plan.settings.strategy.name != OWN_STRATEGY:
                    check_strategy(plan.settings, flat)
            with ExitStack() as stack:
                try:
                    has_rounds = stack.enter_context(
                        open_run(plan.folder, plan.settings, resume=plan.resume)
                    )
                except RunError as error:
                    raise RunError(f"{error} (in the run config: out, resume=true)") from None
                if not plan.resume:
                    print(f"run folder: {plan.folder}", flush=True)
                train_over_grid(
                    grid,
                    plan.settings,
                    plan.folder,
                    print_event,
                    resume=has_rounds,
                    recount=plan.recount,
                    decisions=plan.decisions,
                )
        except Exception as error:
            is_ours = isinstance(error, FedcelError)
            reason = escape_controls(str(error)) if is_ours else describe_unforeseen(error)
            print(f"the run FAILED, whatever the exit status of `flwr run`: {reason}", flush=True)
            raise
        finally:
            conclude_log()
        print(f"the run is complete; its folder: {plan.folder}", flush=True)

    return app


def read_plan(grid: Grid, context: Context) -> RunPlan:
    """Read what the run config asks for, and decide what it leaves to the server.

    Raises:
        RunError: A path is not absolute, or a run cannot be resumed like this.
        SettingsError: A setting is wrong.
    """
    config = context.run_config
    resume, recount = (bool(config.get(key, False)) for key in ("resume", "recount"))
    decisions: dict[str, int | str] = {}
    if recount and not resume:
        raise RunError("recount=true is for a run that is resumed; add resume=true")
    if config["out"] != UNSET:
        folder = Path(str(config["out"]))
    elif resume:
        raise RunError(
            """resume=true needs the run folder; add --run-config 'out="..."' """.strip()
        )
    else:
        home = Path(os.environ.get("FLWR_HOME", "~/.flwr")).expanduser().absolute()
        folder = home / "fedcel-runs" / f"run-{context.run_id}"
        decisions[record_names.OUT] = str(folder)
    if not folder.is_absolute():
        raise RunError(
            f"out is {str(folder)!r}, must be an absolute path: the server's folder is not yours; "
            """add --run-config 'out="/where/it/goes"'"""
        )
    clients = None
    if config["clients"] == CONNECTED_NODES:
        clients = read_settings(folder).clients if resume else count_nodes(grid)
        decisions[record_names.CLIENTS] = clients
        print(f"clients: {clients}", flush=True)
    settings = parse_run_config(config, clients)
    source = settings.data.source
    if isinstance(source, FileSource) and source.is_local and not Path(source.path).is_absolute():
        raise RunError(f"data.path is {source.path!r}, must be an absolute path")
    return RunPlan(settings, folder, resume, recount, decisions)


app = make_server_app()
