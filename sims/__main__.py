"""`python -m sims` is `fedcel`."""

import gc
import sys

from sims import search_path

if __name__ == "__main__":  # before anything that the working folder may have a module of
    search_path.drop_leading_folder()
    search_path.append_working_folder()

from functools import partial
from typing import NoReturn

from sims import supervisor
from sims.commands.main import main, report_error

SUPERVISED = {"simulate", "bench", "tune", "attack", "audit"}
"""Commands that work long, in memory that may not be enough, with parts of a user's own."""


def run() -> NoReturn:
    """Run the command line and end this process with its status.

    A long command runs in a process of its own, see `sims.supervisor`.
    """
    if SUPERVISED & set(sys.argv[1:2]):
        supervised_status = supervisor.supervise_command(
            partial(report_error, status=supervisor.FAILED)
        )
        if supervised_status is not None:
            sys.exit(supervised_status)
    status = 1
    try:
        status = main()
    finally:  # an error that nobody foresaw ends with its traceback, which is a word, too
        supervisor.report_state(status=status)
    gc.freeze()  # the interpreter would look through all modules for cycles: two seconds
    sys.exit(status)


if __name__ == "__main__":
    run()
