"""Process that serves the page of `--live` beside the one that writes into the folder."""

import os
import socket
import sys
import time
from pathlib import Path
from threading import Thread

import uvicorn

from clients.service_messages import LOOPBACK_HOSTS
from sims.commands.listening import Endpoint
from sims.commands.web_server import configure_server
from sims.watch import Following, create_app

LOOK_SECONDS = 0.1
FAREWELL_SECONDS = 15.0
"""For which an open page is waited for at the end; one in the background asks every 5 s."""


def accompany(folder: Path, listener: socket.socket, writer: int) -> None:
    """Answer as long as the process that writes into the folder lives, and tell an open page.

    `writer` is the reading end of a pipe whose other end only that process holds: it ends with
    the process, however that ends.
    """
    following = Following(folder, is_accompanied=True)
    config = configure_server(create_app(following, LOOPBACK_HOSTS), Endpoint("127.0.0.1", 0))
    server = uvicorn.Server(config)

    def end_with_writer() -> None:
        while os.read(writer, 1):
            pass
        following.note_end()
        limit = time.monotonic() + FAREWELL_SECONDS
        while following.is_awaited and time.monotonic() < limit:
            time.sleep(LOOK_SECONDS)
        server.should_exit = server.force_exit = True

    Thread(target=end_with_writer, daemon=True).start()
    server.run(sockets=[listener])


if __name__ == "__main__":  # beside a training: the folder, and the number of the socket
    with socket.socket(fileno=int(sys.argv[2])) as listener:
        accompany(Path(sys.argv[1]), listener, sys.stdin.fileno())
