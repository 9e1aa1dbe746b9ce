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

import grpc
from flwr.app import Context, Message
from flwr.server.superlink.fleet.vce.backend.backend import BackendConfig
from flwr.serverapp import Grid, ServerApp

from clients import make_client_app
from fedcel.errors import EngineError, SettingsError, describe_unforeseen, shorten_text
from fedcel.runs import EventCallback
from fedcel.settings import Settings
from sims import progress
from strategies.flower_log import filter_log
from strategies.server_app import train_over_grid

PROBE_SECONDS = 5.0
"""In which a cluster answers."""
OWN_CLUSTERS = ("", "auto", "local")
"""Addresses by which Ray begins on this machine, or looks for its cluster itself."""
TEMPORARY = ("RAY_TMPDIR", "TMPDIR")
"""What names the folder of Ray's sockets, the first first."""
SOCKET_PATH_BYTES = 107
SESSION_SOCKET = "/ray/session_2026-01-01_00-00-00_000000_{process}/sockets/plasma_store"
"""The longest path of a socket, below the folder for temporary files."""
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


def check_ray_environment() -> None:
    """Refuse, before Ray waits for minutes, an environment in which it cannot begin.

    Raises:
        SettingsError: No cluster answers at RAY_ADDRESS, or the folder for temporary files has a
            path too long for sockets.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    if address in OWN_CLUSTERS:
        variable = next((name for name in TEMPORARY if os.environ.get(name)), "")
        folder = os.environ.get(variable, "")
        longest = SOCKET_PATH_BYTES - len(SESSION_SOCKET.format(process=os.getpid()))
        if len(os.fsencode(folder)) > longest:
            raise SettingsError(
                f"{variable} is {folder!r}, {len(os.fsencode(folder))} bytes long: at most "
                f"{longest} leave room for the names of Ray's sockets; put RAY_TMPDIR=/tmp in "
                "front of the command, or take another --engine"
            )
    elif os.environ.get("RAY_USE_TLS", "0") == "0":  # else only Ray has the certificates
        options = [("grpc.enable_http_proxy", 0)]  # as Ray itself
        with grpc.insecure_channel(address.removeprefix("ray://"), options) as channel:
            try:
                grpc.channel_ready_future(channel).result(PROBE_SECONDS)
            except grpc.FutureTimeoutError:
                raise SettingsError(
                    f"RAY_ADDRESS is {address!r}, where no Ray cluster answers within "
                    f"{PROBE_SECONDS:g} s; start it, or go on without it, with Ray on this machine "
                    "alone: env -u RAY_ADDRESS in front of the command"
                ) from None


@contextmanager
def prepare_ray() -> Iterator[None]:
    """Set the environment in which Ray begins; within the block its advice is not shown.

    Raises:
        SettingsError: Ray cannot begin in it.
    """
    check_ray_environment()
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
