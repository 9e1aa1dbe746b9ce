"""Address of a web server, opened before anything large is imported."""

import socket
from pathlib import Path
from typing import NamedTuple

from fedcel.errors import SettingsError


class Endpoint(NamedTuple):
    """Address and certificate of a web server."""

    host: str
    port: int
    certificate: Path | None = None
    private_key: Path | None = None
    insecure: bool = False


def open_socket(endpoint: Endpoint) -> socket.socket:
    """Return an open socket; SettingsError where the address cannot be used."""
    try:
        family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
        return socket.create_server((endpoint.host, endpoint.port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise SettingsError(
            f"--host {endpoint.host} --port {endpoint.port}: {error}; choose another"
        ) from None


def format_address(listener: socket.socket) -> str:
    """Return host and port as an address writes them."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
