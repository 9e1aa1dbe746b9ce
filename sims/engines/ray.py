"""The Ray engine: Flower's simulation runtime, one virtual SuperNode a client."""

import logging
import os
import signal
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from types import FrameType

from flwr.app import Context, Message
from flwr.server.superlink.fleet.vce.backend.backend import BackendConfig
from flwr.serverapp import Grid, ServerApp

from clients import make_client_app
from fedcel.errors import EngineError, describe_unforeseen, shorten_text
from fedcel.runs import EventCallback
from fedcel.settings import Settings
from sims import progress
from strategies.flower_log import filter_log
from strategies.server_app import train_over_grid

PULL_SECONDS = 0.01  # between two looks for replies
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # keeps Ray's GPU notice away on CPU machines
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # Ray that has ended is not begun again
}
BACKEND: BackendConfig = {
    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    "init_args": {"log_to_driver": False, "logging_level": logging.ERROR},
}
"""What a client takes of a machine, and how Ray is begun."""


@contextmanager
def keep_ray() -> Iterator[None]:
    """Let several trainings within the block share one Ray, which ends with the block.

    A Ray that does not start is left to the first training, which says why.
    """
    from sims.engines.client_processes import ClientProcesses, log_ray_messages

    with log_ray_messages():
        processes = None
        with prepare_ray(), progress.show_waiting("starting Ray"), suppress(Exception):
            processes = ClientProcesses(BACKEND)
        try:
            yield
        finally:
            if processes is not None:
                processes.terminate()


@contextmanager
def prepare_ray() -> Iterator[None]:
    """Set the environment in which Ray begins; within the block its advice is not shown."""
    os.environ.update({key: os.environ.get(key, value) for key, value in ENVIRONMENT.items()})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Tip:", FutureWarning)  # on env variables
        yield


def train_on_ray(
    settings: Settings, folder: Path, show_round: EventCallback, *, resume: bool = False
) -> None:
    """Train into the run folder on Ray; an error in the ServerApp is raised here.

    A client whose process dies is trained again, see `sims.engines.client_processes`.

    Raises:
        EngineError: Ray does not start, or broke down.
        FedcelError: Whatever else keeps the run from its end.
    """
    # Seconds that the other engines need not wait.
    import ray
    from flwr.simulation import run_simulation

    from sims.engines.client_processes import (
        log_ray_messages,
        use_client_processes,
        use_forwarding,
    )

    app = ServerApp()
    stop = Event()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        train_over_grid(make_stoppable(grid, stop), settings, folder, show_round, resume=resume)

    with (
        prepare_ray(),
        stop_on_interrupt(stop),
        filter_log(stop, is_quiet=True),
        use_client_processes(),
        use_forwarding(),
        log_ray_messages(),
    ):
        try:
            run_simulation(
                server_app=app,
                client_app=make_client_app(settings, (folder / "state").resolve()),
                num_supernodes=settings.clients,
                backend_config=BACKEND,
            )
        except RuntimeError as error:
            if type(error) is not RuntimeError:  # of the ServerApp, in its own words
                raise
            ray.shutdown()  # the next training begins another
            raise EngineError(f"Ray broke down: {describe_cause(error)}") from error
        finally:
            stop.set()


def describe_cause(error: BaseException) -> str:
    """Say what an error of Flower's, which says nothing, goes back to.

    Args:
        error: With the error that caused it, if there is one.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    return shorten_text(describe_unforeseen(error))


@contextmanager
def stop_on_interrupt(stop: Event) -> Iterator[None]:
    """Set `stop` the moment that Ctrl-C is pressed, before anything is taken down."""
    is_main = threading.current_thread() is threading.main_thread()
    interrupt = signal.getsignal(signal.SIGINT)
    if not is_main or not callable(interrupt):
        yield
        return

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        stop.set()
        interrupt(number, frame)

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, interrupt)


def make_stoppable(grid: Grid, stop: Event) -> Grid:
    """End the ServerApp's wait for replies once `stop` is set; returns the grid.

    The ServerApp is a thread of this process, which could not end while it waits.
    """
    pull, nodes = grid.pull_messages, grid.get_node_ids

    def pull_messages(message_ids: Iterable[str]) -> Iterable[Message]:
        if stop.is_set():
            raise InterruptedError("the run was stopped")
        return pull(message_ids)

    def get_node_ids() -> Iterable[int]:
        if stop.is_set():
            raise InterruptedError("the run was stopped")
        return nodes()

    # In memory a look costs nothing; the default of .1 s would be most of a small round.
    grid.pull_interval = PULL_SECONDS  # type: ignore[attr-defined]
    grid.pull_messages = pull_messages  # type: ignore[method-assign]
    grid.get_node_ids = get_node_ids  # type: ignore[method-assign]
    return grid
