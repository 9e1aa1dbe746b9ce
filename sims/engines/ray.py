"""The Ray engine: clients trained by Ray's processes, on this machine or a cluster's."""

import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any, TextIO, cast

import grpc

from clients import make_client_app
from fedcel.errors import (
    EngineError,
    FedcelError,
    SettingsError,
    describe_unforeseen,
    shorten_text,
)
from fedcel.flower_messages import allow_messages
from fedcel.runs import EventCallback
from fedcel.settings import Settings
from sims import progress, supervisor
from strategies.flower_log import filter_log, log
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
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # keeps Ray's GPU notice away on CPU machines
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # Ray that has ended is not begun again
}
RAY_LINE = re.compile(r"(?:\x1b\[\d+m)?\((?:raylet|autoscaler)[^)]*\)(?:\x1b\[\d+m)? *(.*)")
"""How Ray 2.55 prints what it says of its own processes; the end of the line comes after."""
WORKER_DIED = "A worker died or was killed"
"""How Ray begins to tell of a process of clients that ended."""
MAX_LINE = 300
"""Characters of what Ray says of its processes."""


def train_on_ray(
    settings: Settings, folder: Path, show_round: EventCallback, *, resume: bool = False
) -> None:
    """Train into the run folder over clients on Ray, see `sims.engines.ray_grid`.

    Raises:
        EngineError: Ray does not start, or broke down.
        FedcelError: Whatever else keeps the run from its end.
    """
    app = make_client_app(settings)
    with run_ray(), allow_messages(), filter_log(is_quiet=True):
        from sims.engines.ray_grid import RayGrid  # seconds that a refusal need not wait

        with RayGrid(app, settings.clients, folder / "state") as grid:
            train_over_grid(grid, settings, folder, show_round, resume=resume)


@contextmanager
def keep_ray() -> Iterator[None]:
    """Let several trainings within the block share one Ray, which ends with the block.

    A Ray that does not start is left to the first training, which says why.
    """
    with ExitStack() as stack:
        with progress.show_waiting("starting Ray"), suppress(FedcelError):
            stack.enter_context(run_ray())
        yield


@contextmanager
def run_ray() -> Iterator[None]:
    """Provide Ray within the block: one that runs already, or one that ends with the block.

    Raises:
        SettingsError: Ray cannot begin in this environment.
        EngineError: It does not start.
    """
    import ray

    with ExitStack() as stack:
        # Ray has no parameter for what it says of its own: `log_to_driver` is about clients.
        stack.enter_context(redirect_stdout(cast(TextIO, RayLines(sys.stdout))))
        if not ray.is_initialized():
            check_ray_environment()
            os.environ.update(
                {key: os.environ.get(key, value) for key, value in ENVIRONMENT.items()}
            )
            # Ray puts the working folder in front of where its processes look for modules, which
            # may have the names of fedcel's there; the grid's tasks go back to the folder.
            with warnings.catch_warnings(), chdir(os.sep):
                warnings.filterwarnings("ignore", "Tip:", FutureWarning)  # on env variables
                try:
                    ray.init(
                        include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
                    )
                except Exception as error:
                    ray.shutdown()  # the next training begins another
                    reason = shorten_text(describe_unforeseen(error))
                    raise EngineError(f"Ray does not start: {reason}") from error
            stack.callback(ray.shutdown)
            supervisor.report_state(uses_ray=True)
            stack.callback(supervisor.report_state, uses_ray=False)
        yield


class RayLines:
    """Standard output without what Ray prints of its own processes, which is logged.

    Args:
        stream: Takes all other texts.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._ends_line = stream, False

    def __getattr__(self, name: str) -> Any:
        """Return whatever else the stream has."""
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text, or log the first line of Ray's.

        A lost process of a client is left out: that client's own line says it.
        """
        line = RAY_LINE.match(text)
        if line and WORKER_DIED not in text:
            log(logging.WARNING, "Ray: %s", shorten_text(line[1], MAX_LINE))
        is_end, self._ends_line = self._ends_line and text == "\n", bool(line)
        return len(text) if line or is_end else self._stream.write(text)


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
