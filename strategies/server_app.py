"""The Flower ServerApp: settings, strategy, rounds, evaluation."""

import time
from contextlib import suppress
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy

from fedcel.data import Splits, list_classes, load_splits
from fedcel.errors import RunError
from fedcel.federation import RoundReport, ServerState, record_names
from fedcel.nets import to_arrays, to_vector
from fedcel.runs import (
    Event,
    EventCallback,
    ServerRun,
    create_run,
    evaluate_run,
    has_begun,
    read_run,
    write_evaluation,
)
from fedcel.settings import Settings, parse_settings
from strategies.build_strategy import ReplyRecorder, build_strategy
from strategies.flower_log import filter_log
from strategies.posterior_strategy import PosteriorStrategy

_OUT = "out"  # run config only: where the ServerApp writes the run folder
_RESUME = "resume"  # run config only: whether it goes on with the one that is there


class _ConvergedError(Exception):
    """Ends Flower's loop over rounds, which has no other way out, when the chain may stop."""


class RoundObserver:
    """Concludes each round as Flower ends it."""

    def __init__(self, strategy: Strategy, run: ServerRun) -> None:
        self._strategy, self._run = strategy, run
        is_stock = not isinstance(strategy, PosteriorStrategy)
        self._recorder = ReplyRecorder(strategy) if is_stock else None

    def conclude_round(self, number: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Take round `number` of this call, 0 before the first, as Flower's `evaluate_fn`."""
        strategy = self._strategy
        if number and isinstance(strategy, PosteriorStrategy):
            strategy.state = self._run.conclude_round(strategy.state, strategy.report)
        elif number:
            self._run.conclude_round(*self._read_stock_round(number, arrays))
        if self._run.has_converged:  # in round 0: it was stopped after its last one
            raise _ConvergedError
        return None

    def _read_stock_round(
        self, number: int, arrays: ArrayRecord
    ) -> tuple[ServerState, RoundReport]:
        """Return what a strategy that keeps no state of its own made of a round."""
        assert self._recorder is not None
        # Some of Flower's strategies average in double precision.
        model = to_vector([array.astype(np.float32) for array in arrays.to_numpy_ndarrays()])
        nodes, rejected = self._recorder.read_round(number)
        examples = sum(len(client.y) for client in self._run.splits.clients)
        report = RoundReport(nodes, rejected, {}, examples)
        return self._run.state._replace(round=number, model=model), report


def train_over_grid(
    grid: Grid,
    settings: Settings,
    folder: Path,
    show_round: EventCallback,
    *,
    resume: bool = False,
    measure: bool = True,
) -> None:
    """Train into the run folder over a grid of nodes.

    Args:
        grid: Carries the messages.
        settings: The run's settings.
        folder: Made by `create_run`.
        show_round: Is called with every round's event.
        resume: Go on with the last complete round.
        measure: Measure the result on the test set, too.

    Raises:
        RunError: The folder is damaged, or the strategy cannot resume.
        FedcelError: Whatever else keeps the run from its end.
    """
    begin = time.perf_counter()
    splits = load_splits(settings.data, settings.clients, settings.seed)
    run = ServerRun(folder, settings, splits, show_round, resume=resume)
    strategy = build_strategy(settings, run.state, run.flat.shapes, run.flat.cut)
    if resume and not isinstance(strategy, PosteriorStrategy):
        raise RunError(f"{settings.strategy.name} keeps no state of its own and cannot resume")
    requirements = _describe_images(settings, splits)
    with suppress(_ConvergedError), filter_log(first_round=run.state.round):
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(to_arrays(run.state.model, run.flat.shapes)),
            num_rounds=settings.rounds - run.state.round,
            timeout=settings.strategy.timeout,
            train_config=requirements,
            evaluate_config=requirements,
            evaluate_fn=RoundObserver(strategy, run).conclude_round,
        )
    run.close()
    if not measure:
        return
    evaluation = evaluate_run(read_run(folder), time.perf_counter() - begin)
    if isinstance(strategy, PosteriorStrategy) and strategy.registry.has_node_data:
        # It would be that of images nobody trained on.
        evaluation.result["between-client-spread"] = None
    write_evaluation(folder, evaluation)


def _describe_images(settings: Settings, splits: Splits) -> ConfigRecord:
    """Return what images of a node's own have to fit."""
    requirements = ConfigRecord(
        {record_names.SHAPE: list(splits.shape), record_names.CLASSES: splits.classes}
    )
    if names := list_classes(settings.data):
        requirements[record_names.CLASS_NAMES] = names
    return requirements


def print_event(event: Event) -> None:
    """Print a line about a round into a plain log."""
    print(
        f"round {event['round']}: accuracy {event['accuracy']:.3f}, "
        f"spread {event['within-class-spread']:.4f}, {event['seconds']:.2f} s",
        flush=True,
    )


def make_server_app() -> ServerApp:
    """Make the ServerApp, which reads settings, `out` and `resume` from the run config.

    Returns:
        The app for `flwr run` or a simulation of Flower's.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = dict(context.run_config)
        out = Path(str(config.pop(_OUT)))
        if not out.is_absolute():
            raise RunError(
                f"out is {str(out)!r}, must be an absolute path: the server's folder is not yours; "
                """add --run-config 'out="/where/it/goes"'"""
            )
        resume = bool(config.pop(_RESUME))
        settings = parse_settings(config)
        if settings.data.path != "none" and not Path(settings.data.path).is_absolute():
            raise RunError(f"data.path is {settings.data.path!r}, must be an absolute path")
        try:
            resume = resume and has_begun(settings, out)
            if not bool(context.run_config[_RESUME]):
                create_run(out, settings)
        except RunError as error:
            raise RunError(f"{error} (in the run config: out, resume=true)") from None
        train_over_grid(grid, settings, out, print_event, resume=resume)
        print(f"run folder: {out}", flush=True)

    return app


app = make_server_app()
