"""Connections that no client makes, on raw sockets, without a key: they cost others nothing."""

import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path
from select import select
from termios import FIONREAD
from typing import NamedTuple

import httpx
import pytest

from tests.system.services import Process, serving_forked

TRAFFIC = 16 * 2**20
SECONDS = 2.0
MOST_MIB = 8
CLOSED_BYTES = 2**20  # what the buffers of both ends hold when a connection is closed, and more
GET = b"GET /healthz HTTP/1.1\r\nHost: here\r\n"
POST = b"POST /v1/query HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"


class Flood(NamedTuple):
    mib: float
    """Memory of the service above that before, at most."""
    sent: int
    stand: float
    """Seconds that another connection waited for an answer, at most."""


@pytest.fixture(scope="module")
def service(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    place = tmp_path_factory.mktemp("ledger")
    words = (folder, "--ledger", place / "ledger.db", "--port", "0", "--allow-chance")
    with serving_forked(place / "log", *words) as process:
        with httpx.Client(base_url=process.url, timeout=60) as client:
            for _ in range(200):
                client.get("/healthz")
        yield process


def connect(service: Process) -> socket.socket:
    return socket.create_connection(("127.0.0.1", httpx.URL(service.url).port or 0), timeout=5)


def read_memory(service: Process) -> float:
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def flood(service: Process, opening: bytes, unit: bytes, *, reads: bool = True) -> Flood:
    """Send `opening`, then `unit` repeated: 16 MiB, for 2 seconds, or until it is closed."""
    before, most, stand, sent = read_memory(service), 0.0, 0.0, 0
    block = memoryview(unit * (2**17 // len(unit) + 1))
    start = time.monotonic()
    other = httpx.Client(base_url=service.url, timeout=60)
    with connect(service) as line, other, suppress(ConnectionError):
        line.sendall(opening)
        line.setblocking(False)
        place, next_look = 0, 0.0
        while sent < TRAFFIC and time.monotonic() - start < SECONDS:
            readable, writable, _ = select([line] if reads else [], [line], [], 0.1)
            if readable and not line.recv(2**20):
                break
            if writable:
                count = line.send(block[place:])
                sent, place = sent + count, (place + count) % len(block)
            if time.monotonic() > next_look:
                asked = time.monotonic()
                assert other.get("/healthz").status_code == 200
                stand = max(stand, time.monotonic() - asked)
                next_look = time.monotonic() + 0.2
                most = max(most, read_memory(service))
    return Flood(max(most, read_memory(service)) - before, sent, stand)


@pytest.mark.parametrize(
    ("opening", "unit"),
    [
        pytest.param(GET, b"a:b\r\n", id="small headers"),
        pytest.param(GET + b"a: ", b"b", id="a header's value"),
        pytest.param(GET, b"b", id="a header's name"),
        pytest.param(b"GET /", b"b", id="an address"),
        pytest.param(b"", b"\r\n", id="empty lines"),
        pytest.param(POST + b"1\r\nx\r\n0\r\n", b"a:b\r\n", id="trailers"),
        pytest.param(POST + b"1\r\nx\r\n0\r\na: ", b"b", id="a trailer's value"),
        pytest.param(POST + b"1;a=", b"b", id="a chunk's extension"),
        pytest.param(b"", GET + b"Upgrade: a\r\nConnection: upgrade\r\n\r\n", id="upgrades"),
    ],
)
def test_a_head_without_an_end_is_cut_off(service: Process, opening: bytes, unit: bytes) -> None:
    """The connection is closed early: a long header costs time by its square."""
    result = flood(service, opening, unit)
    assert result.sent < CLOSED_BYTES and result.mib < MOST_MIB and result.stand < 2, result


@pytest.mark.parametrize(
    ("opening", "unit", "reads"),
    [
        pytest.param(POST, b"1\r\nx\r\n", True, id="small chunks"),
        pytest.param(b"", b"GET /a HTTP/1.1\r\n\r\n", True, id="requests"),
        pytest.param(b"", b"GET /healthz HTTP/1.1\r\n\r\n", False, id="unread answers"),
        pytest.param(b"", b"GET /openapi.json HTTP/1.1\r\n\r\n", False, id="large answers"),
    ],
)
def test_requests_without_an_end_wait_at_the_sender(
    service: Process, opening: bytes, unit: bytes, reads: bool
) -> None:
    """They are read no faster than they are answered, and answered as their answers are read."""
    result = flood(service, opening, unit, reads=reads)
    assert result.mib < MOST_MIB and result.stand < 2, result


def test_unread_answers_do_not_delay_the_end(service: Process) -> None:
    """The log has no error, not of what came before either, and the status is 0."""
    with connect(service) as line:
        with suppress(TimeoutError):
            line.settimeout(1)
            while True:
                line.sendall(b"GET /openapi.json HTTP/1.1\r\n\r\n" * 100)
        unread = 0
        while not unread or unread != count_unread(line):
            unread = count_unread(line)
            time.sleep(1)
        start = time.monotonic()
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(60) == 0
        assert time.monotonic() - start < 12
        assert '"error"' not in service.log.read_text()


def count_unread(line: socket.socket) -> int:
    return int.from_bytes(ioctl(line, FIONREAD, bytes(4)), sys.byteorder)
