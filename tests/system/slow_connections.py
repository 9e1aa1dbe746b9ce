"""Connections that keep a server waiting: a byte a second, or half of a TLS handshake."""

import resource
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

HALF_HANDSHAKE = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # of a ClientHello, then silence
REQUEST = b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9999\r\n\r\n"


@contextmanager
def hold_connections(address: tuple[str, int], count: int) -> Iterator[list[ssl.SSLSocket]]:
    """Hold TLS connections that send a request of nobody, a byte a second each.

    Args:
        address: Of the server.
        count: How many connections.

    Yields:
        Those that the server has not closed; the list gets shorter when it closes some.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    connections: list[ssl.SSLSocket] = []
    is_over = threading.Event()

    def send_slowly() -> None:
        position = 0
        while not is_over.wait(1):
            for connection in [*connections]:
                byte = REQUEST[position : position + 1] or b"x"
                try:
                    connection.send(byte)
                except OSError:
                    connections.remove(connection)
            position += 1

    try:
        for _ in range(count):
            plain = socket.create_connection(address, timeout=60)
            connections.append(trusting.wrap_socket(plain))
        sender = threading.Thread(target=send_slowly)
        sender.start()
        yield connections
    finally:
        is_over.set()
        for connection in connections:
            connection.close()
    sender.join()


def send_garbage(address: tuple[str, int], content: bytes) -> bytes:
    """Send bytes to a server; return its answer, empty where it hangs up or says nothing."""
    with socket.create_connection(address, timeout=5) as connection, suppress(OSError):
        connection.sendall(content)
        return connection.recv(1000)
    return b""
