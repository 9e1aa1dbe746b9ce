"""The Flower ServerApp: settings, strategy, journal, outcome."""

import time
from contextlib import suppress
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy

from fedcel.data import Splits, class_names, load
from fedcel.errors import RunError
from fedcel.federation import record_names
from fedcel.federation.aggregation import ServerState
from fedcel.nets.flat_parameters import to_arrays, to_vector
from fedcel.runs import run_folder
from fedcel.runs.evaluation import outcome, store
from fedcel.runs.round_log import Event, Journal, Tell
from fedcel.settings.parsing import Settings, parse
from strategies.build_strategy import Answers, make
from strategies.posterior import PosteriorStrategy


class ConvergedError(Exception):
    """Ends Flower's loop over rounds, which has no other way out, when the chain may stop."""


OUT = "out"  # run config only: where the ServerApp writes the run folder
RESUME = "resume"  # run config only: whether it goes on with the one that is there


class NodesJournal(Journal):
    """Counts the training images that the nodes hold, where these are not the server's to deal."""

    held = 0

    @property
    def examples(self) -> int:
        """Return N, the training images of all clients together."""
        return self.held or super().examples


class Rounds:
    """Writes each round into the journal, as Flower ends it."""

    def __init__(self, strategy: Strategy, journal: NodesJournal, state: ServerState) -> None:
        """`state` is what the first of them starts from. Hears a stock strategy's replies."""
        self.strategy, self.journal, self.last = strategy, journal, state
        self.answers = Answers()
        if not isinstance(strategy, PosteriorStrategy):
            self.answers.listen(strategy)

    def ended(self, number: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Take round `number` of this call, 0 before the first, as Flower's `evaluate_fn`.

        ConvergedError where our own strategy's chain may stop.
        """
        if not isinstance(self.strategy, PosteriorStrategy):
            self.last = self.of_stock(number, arrays) if number else self.last
            return None
        if number:
            self.last = self.of_own(self.strategy, number)
        if self.journal.converged:  # in round 0: it was stopped after its last one
            raise ConvergedError
        return None

    def of_own(self, strategy: PosteriorStrategy, number: int) -> ServerState:
        """Return what the journal makes of a round of our own strategy, and go on from it."""
        self.journal.held = sum(strategy.examples.values())
        done = strategy.state._replace(round=number + strategy.first)
        told = strategy.kept, strategy.rejected, strategy.reported
        strategy.state = self.journal.record(done, *told)
        return strategy.state

    def of_stock(self, number: int, arrays: ArrayRecord) -> ServerState:
        """Return what the journal makes of a round of a strategy that keeps no state of its own."""
        # Some of Flower's strategies average in double precision.
        model = to_vector([a.astype(np.float32) for a in arrays.to_numpy_ndarrays()])
        nodes, rejected = self.answers.of_round(number)
        done = self.last._replace(round=number, model=model)
        return self.journal.record(done, nodes, rejected, {})


def serve(
    grid: Grid,
    settings: Settings,
    folder: Path,
    tell: Tell,
    resume: bool = False,
    measure: bool = True,
) -> None:
    """Train over `grid` into the run folder; unless `measure` is off, measure the result."""
    begin = time.perf_counter()
    splits = load(settings.data, settings.clients, settings.seed)
    flat = run_folder.fresh_net(settings, splits)
    journal = NodesJournal(folder, settings, splits, flat, tell)
    state = journal.resume() if resume else journal.begin()
    strategy = make(settings, state, flat.shapes, flat.cut)
    if resume and not isinstance(strategy, PosteriorStrategy):
        raise RunError(f"{settings.strategy.name} keeps no state of its own and cannot resume")
    rounds = Rounds(strategy, journal, state)
    with suppress(ConvergedError):
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(to_arrays(state.model, flat.shapes)),
            num_rounds=settings.rounds - state.round,
            timeout=settings.strategy.timeout,
            train_config=fits(settings, splits),
            evaluate_config=fits(settings, splits),
            evaluate_fn=rounds.ended,
        )
    journal.close(rounds.last)
    if not measure:
        return
    found = outcome(run_folder.read(folder), time.perf_counter() - begin)
    if isinstance(strategy, PosteriorStrategy) and strategy.own_images:
        # It would be that of images nobody trained on.
        found.result["between-client-spread"] = None
    store(folder, found)


def fits(settings: Settings, splits: Splits) -> ConfigRecord:
    """Return what images of a node's own have to fit."""
    said = ConfigRecord(
        {record_names.SHAPE: list(splits.shape), record_names.CLASSES: splits.classes}
    )
    if names := class_names(settings.data):
        said[record_names.NAMES] = names
    return said


def log_event(event: Event) -> None:
    """Tell a plain log about a round."""
    print(
        f"round {event['round']}: accuracy {event['accuracy']:.3f}, "
        f"spread {event['within-class-spread']:.4f}, {event['seconds']:.2f} s",
        flush=True,
    )


def server_app() -> ServerApp:
    """Return the app that reads its settings, and `out`, from the run config."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = dict(context.run_config)
        out = Path(str(config.pop(OUT)))
        if not out.is_absolute():
            raise RunError(
                f"out is {str(out)!r}, must be an absolute path: the server's folder is not yours; "
                """add --run-config 'out="/where/it/goes"'"""
            )
        resume = bool(config.pop(RESUME))
        settings = parse(config)
        if settings.data.path != "none" and not Path(settings.data.path).is_absolute():
            raise RunError(f"data.path is {settings.data.path!r}, must be an absolute path")
        try:
            going_on = resume and run_folder.begun(settings, out)
            if not resume:
                run_folder.create(out, settings)
        except RunError as error:
            raise RunError(f"{error} (in the run config: out, resume=true)") from None
        serve(grid, settings, out, log_event, going_on)
        print(f"run folder: {out}", flush=True)

    return app


app = server_app()
