"""The page of `--live`: served by a process of its own, which can neither slow nor end a run."""

import math
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from fedcel.errors import SettingsError
from fedcel.extras import require_extra
from fedcel.settings import Scalar, Settings
from sims.commands.listening import Endpoint, format_address, open_socket
from sims.commands.watch import PORT
from sims.progress import print_line
from sims.search_path import copy_environment

MEASUREMENTS = 20
"""Of the leak in a training, where `--live` asks for them and no setting does."""
LOWEST_PRIORITY = 19
END_SECONDS = 3.0
"""For which the page is waited for: it is told that the run is over."""


def measure_for_page(settings: Settings, overrides: Mapping[str, Scalar]) -> Settings:
    """Return settings by which the leak is measured about `MEASUREMENTS` times.

    Where the settings or the command's `overrides` have `bits-every`, that holds.
    """
    if settings.bits_every or "bits-every" in overrides:
        return settings
    every = math.ceil(settings.rounds / MEASUREMENTS)
    return settings.model_copy(update={"bits_every": every})


@contextmanager
def show_live_page(folder: Path, *, is_shown: bool) -> Iterator[None]:
    """Serve the page of a folder, which need not exist yet, while the block runs.

    Raises:
        SettingsError: No port can be listened on.
        MissingExtraError: A package is missing that the page needs.
    """
    if not is_shown:
        yield
        return
    require_extra("service")
    require_extra("report")
    process = start_page(folder)
    try:
        yield
    finally:
        if process is not None and process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
            with suppress(subprocess.TimeoutExpired):  # it ends by itself
                process.wait(END_SECONDS)


def start_page(folder: Path) -> subprocess.Popen[bytes] | None:
    """Start the process that serves the page, and say where; None where it does not start."""
    with open_first_socket() as listener:
        command = [sys.executable, "-P", "-m", "sims.commands.page_process"]
        try:
            process = subprocess.Popen(
                [*command, str(folder.absolute()), str(listener.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                env=copy_environment(),
                process_group=0,  # Ctrl-C is for the run; priorities hold within a session alone
            )
            # At once: loading takes seconds, which a training would lose where cores are few.
            os.setpriority(os.PRIO_PROCESS, process.pid, LOWEST_PRIORITY)
        except OSError as error:
            print_line(f"watch: the page cannot be served ({error}); the run goes on without it")
            return None
        print_line(f"watch: http://{format_address(listener)}")
        return process


def open_first_socket() -> socket.socket:
    """Return an open socket, on the usual port where that is free."""
    try:
        return open_socket(Endpoint("127.0.0.1", PORT))
    except SettingsError:
        return open_socket(Endpoint("127.0.0.1", 0))
