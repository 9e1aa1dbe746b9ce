"""A page's application on a real socket."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import httpx
import uvicorn
from fastapi import FastAPI

from sims.commands.listening import Endpoint
from sims.commands.web_server import configure_server

LOCAL = Endpoint("127.0.0.1", 0, None, None, False)


@contextmanager
def serve_app(app: FastAPI) -> Iterator[httpx.Client]:
    """Answer in a thread until the block ends; yields who asks."""
    server = uvicorn.Server(configure_server(app, LOCAL))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with httpx.Client(base_url=url, timeout=30) as client:
            yield client
        server.should_exit = True
        thread.join(20)
    assert not thread.is_alive()
