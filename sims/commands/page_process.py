"""The process beside a training that serves its page: of lowest priority before it loads anything.

Loading takes seconds, which a training would lose where cores are few.
"""

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

LOWEST_PRIORITY = 19


def main(arguments: Sequence[str]) -> None:
    """Accompany the process that began this one.

    Args:
        arguments: The folder, and the number of the socket to answer on. The standard input is a
            pipe of the other process.
    """
    os.nice(LOWEST_PRIORITY)
    from sims.commands.watch_server import accompany

    folder, number = arguments
    with socket.socket(fileno=int(number)) as listener:
        accompany(Path(folder), listener, sys.stdin.fileno())


if __name__ == "__main__":
    main(sys.argv[1:])
