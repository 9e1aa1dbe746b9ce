"""`python -m sims` is `fedcel`."""

import os
import sys
import threading
import time
from typing import NoReturn

from sims.commands.main import INTERRUPTED, main

GRACE_SECONDS = 5.0


def run() -> NoReturn:
    """Run the command line and end this process with its status.

    Ctrl-C on Ray can leave a thread of Flower's that waits for ever for an answer of a cluster
    that is gone, and an interpreter waits for its threads. Everything kept is written whole, so
    nothing is lost by ending without them.
    """
    status = main()
    if status == INTERRUPTED and not have_threads_ended(GRACE_SECONDS):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


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
