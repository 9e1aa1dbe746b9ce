"""The bounds of one connection: what they let through whole, and what ends by them."""

import asyncio
import http.client
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread

import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse

from sims.commands.bounded_http import MAX_HEAD_BYTES, PIECE_BYTES
from sims.commands.listening import Endpoint
from sims.commands.web_server import configure_server

LARGE = 8 * 2**20


def create_app() -> FastAPI:
    """Return an application that repeats bodies, and has a large answer."""
    app = FastAPI()

    @app.post("/echo", response_class=PlainTextResponse)
    async def echo(request: Request) -> str:
        await asyncio.sleep(0.001)
        return (await request.body()).decode()

    @app.get("/large", response_class=PlainTextResponse)
    async def send_large() -> str:
        return "x" * LARGE

    return app


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server that waits one second for a header, or for the reader of an answer."""
    endpoint = Endpoint("127.0.0.1", 0, None, None, False)
    server = uvicorn.Server(configure_server(create_app(), endpoint, idle_seconds=1))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join(10)
    assert not thread.is_alive()


def read_replies(line: socket.socket, count: int) -> list[str]:
    replies = []
    with line.makefile("rb") as file:
        for _ in range(count):
            head = b"".join(iter(file.readline, b"\r\n")).lower()
            assert head.startswith(b"http/1.1 200")
            length = int(head.partition(b"content-length: ")[2].split()[0])
            replies.append(file.read(length).decode())
    return replies


def test_pipelined_requests_are_answered_in_order(port: int) -> None:
    """Small ones and such that are longer than all pieces, in chunks and whole, sent at once."""
    bodies = [f"{number}" * (1 + 3 * PIECE_BYTES * (number % 7 == 0)) for number in range(300)]
    requests = []
    for number, body in enumerate(bodies):
        chunked = f"Transfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n{body}\r\n0\r\n\r\n"
        whole = f"Content-Length: {len(body)}\r\n\r\n{body}"
        framed = chunked if number % 3 == 0 else whole
        requests.append(f"POST /echo HTTP/1.1\r\nHost: here\r\n{framed}")
    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        sender = Thread(target=line.sendall, args=["".join(requests).encode()])
        sender.start()
        assert read_replies(line, len(bodies)) == bodies
        sender.join()


def test_heads_up_to_the_limit_pass(port: int) -> None:
    """With the body beside them; a longer one is refused, also on a connection that was used."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    for _ in range(3):
        connection.request("POST", "/echo", b"x" * 9, {"a": "b" * (MAX_HEAD_BYTES - 200)})
        assert connection.getresponse().read() == b"x" * 9
    connection.request("POST", "/echo", b"x", {"a": "b" * (MAX_HEAD_BYTES + PIECE_BYTES)})
    assert connection.getresponse().status == 400


def test_an_unread_answer_ends_the_connection(port: int) -> None:
    """One that is read slowly arrives whole, however long that takes."""
    request = b"GET /large HTTP/1.1\r\nHost: here\r\n\r\n"
    with socket.socket() as unread, socket.socket() as slow:
        for line in (unread, slow):
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
            line.settimeout(10)
            line.connect(("127.0.0.1", port))
            line.sendall(request)
        start, count = time.monotonic(), 0
        while time.monotonic() - start < 4:
            count += len(slow.recv(2**18))
            time.sleep(0.2)
        assert count < LARGE
        while part := slow.recv(2**20):
            count += len(part)
        assert count > LARGE
        rest = 0
        with suppress(ConnectionError):
            while part := unread.recv(2**20):
                rest += len(part)
        assert rest < LARGE
