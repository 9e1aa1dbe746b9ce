"""`python -m sims` is `fedcel`."""

import sys

from sims import search_path

if __name__ == "__main__":  # before anything that the working folder may have a module of
    search_path.drop_leading_folder()
    search_path.append_working_folder()

import os
import threading
import time
from typing import NoReturn

from sims import supervisor
from sims.commands.interruption import explain_hint
from sims.commands.main import INTERRUPTED, main, report_error

GRACE_SECONDS = 5.0
SUPERVISED = {"simulate", "bench", "tune", "attack", "audit"}
"""Commands that work long, in memory that may not be enough, with parts of a user's own."""


def run() -> NoReturn:
    """Run the command line and end this process with its status.

    A long command runs in a process of its own, see `sims.supervisor`.

    Ctrl-C on Ray can leave a thread of Flower's that waits for ever for an answer of a cluster
    that is gone, and an interpreter waits for its threads. Everything kept is written whole, so
    nothing is lost by ending without them.
    """
    if SUPERVISED & set(sys.argv[1:2]):
        supervised_status = supervisor.supervise_command(report_ending)
        if supervised_status is not None:
            sys.exit(supervised_status)
    status = 1
    try:
        status = main()
    finally:  # an error that nobody foresaw ends with its traceback, which is a word, too
        supervisor.say_status(status)
    if status == INTERRUPTED and not have_threads_ended(GRACE_SECONDS):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def report_ending(ending: supervisor.Ending) -> None:
    """Say why a command's process ended, and how to go on."""
    report_error(f"{ending.reason}{explain_hint(ending.hint)}", supervisor.FAILED)


def have_threads_ended(seconds: float) -> bool:
    """Say whether all threads that an interpreter waits for end within `seconds`."""
    limit = time.monotonic() + seconds
    threads = [
        thread
        for thread in threading.enumerate()
        if thread is not threading.main_thread() and not thread.daemon
    ]
    for thread in threads:
        thread.join(max(0.0, limit - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)


if __name__ == "__main__":
    run()
