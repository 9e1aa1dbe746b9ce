"""The Flower ServerApp: settings, strategy, journal, outcome."""

import inspect
import time
from contextlib import suppress
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy

from fedcel import aggregation, plugins, runs, schedule
from fedcel.arrays import to_arrays, to_vector
from fedcel.data import load
from fedcel.errors import RunError, SettingsError
from fedcel.files import write_json
from fedcel.journal import Event, Journal, Tell
from fedcel.outcome import outcome
from fedcel.settings import OWN_STRATEGY, Settings, parse
from strategies.posterior import PosteriorStrategy


class ConvergedError(Exception):
    """Ends Flower's loop over rounds, which has no other way out, when the chain may stop."""


OUT = "out"  # run config only: where the ServerApp writes the run folder


def serve(grid: Grid, settings: Settings, folder: Path, tell: Tell, resume: bool = False) -> None:
    """Train over `grid` into the run folder, then measure the result."""
    begin = time.perf_counter()
    splits = load(settings.data, settings.clients, settings.seed)
    flat = runs.fresh_net(settings, splits)
    journal = Journal(folder, settings, splits, flat, tell)
    state = journal.resume() if resume else journal.begin()
    strategy = make(settings, state, flat.shapes, flat.cut)
    own = isinstance(strategy, PosteriorStrategy)
    if resume and not own:
        raise RunError(f"{settings.strategy.name} keeps no state of its own and cannot resume")
    last = state

    def after_round(number: int, arrays: ArrayRecord) -> MetricRecord | None:
        nonlocal last
        if number == 0:
            if own and journal.converged:  # it was stopped after its last round
                raise ConvergedError
            return None
        if isinstance(strategy, PosteriorStrategy):
            done = strategy.state._replace(round=number + strategy.first)
            last = journal.record(done, strategy.kept, strategy.rejected, strategy.reported)
            strategy.state = last
            if journal.converged:
                raise ConvergedError
        else:
            model = to_vector(arrays.to_numpy_ndarrays())
            clients = schedule.chosen(settings, number)  # as many; Flower draws others
            last = journal.record(last._replace(round=number, model=model), clients, [], {})
        return None

    with suppress(ConvergedError):
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(to_arrays(state.model, flat.shapes)),
            num_rounds=settings.rounds - state.round,
            evaluate_fn=after_round,
        )
    journal.close(last)
    write_json(folder / "result.json", outcome(runs.read(folder), time.perf_counter() - begin))


def make(
    settings: Settings, state: aggregation.ServerState, shapes: list[tuple[int, ...]], cut: int
) -> Strategy:
    """Return the strategy of the settings: ours, a subclass of it, or a stock one of Flower."""
    if settings.strategy.name == OWN_STRATEGY:
        return PosteriorStrategy(settings, state, shapes, cut)
    found = plugins.load(settings.strategy.name)
    if not (isinstance(found, type) and issubclass(found, Strategy)):
        raise SettingsError(f"strategy.name {settings.strategy.name!r} is no Flower Strategy")
    if issubclass(found, PosteriorStrategy):
        return found(settings, state, shapes, cut)
    if settings.strategy.upload != "weights":
        raise SettingsError(
            f"strategy.upload is 'delta', {settings.strategy.name} averages weights; "
            "set strategy.upload to 'weights' and temperature to 0"
        )
    everyone = settings.clients
    taking_part = settings.clients_per_round or everyone
    offered = {
        "fraction_train": taking_part / everyone,
        "fraction_evaluate": 0.0,  # the server scores every round on its validation images
        "min_train_nodes": taking_part,
        "min_available_nodes": everyone,
        "server_learning_rate": settings.strategy.gain,
        "server_momentum": settings.strategy.momentum,
        "proximal_mu": settings.strategy.proximal,
    }
    known = inspect.signature(found).parameters
    return found(**{key: value for key, value in offered.items() if key in known})


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
        settings = parse(config)
        if settings.data.path != "none" and not Path(settings.data.path).is_absolute():
            raise RunError(f"data.path is {settings.data.path!r}, must be an absolute path")
        runs.create(out, settings)
        serve(grid, settings, out, log_event)
        print(f"run folder: {out}", flush=True)

    return app


app = server_app()
