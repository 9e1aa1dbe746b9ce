"""Serve a finished run over HTTP: the composition of model, mechanism, ledger and web server."""

import asyncio
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from clients.service.app import create_app
from clients.service.auth import key_table_path
from clients.service.logs import configure_logs
from clients.service.model import ServedModel, load_served
from clients.service.state import Limits, Service
from fedcel.errors import RunError, SettingsError
from fedcel.privacy import Mechanism, build_mechanism
from fedcel.runs import Run, run_folder
from fedcel.settings import Scalar
from sims.commands.overrides import override_group

LOOPBACK = ("localhost", "127.0.0.1", "::1")
DRAIN = 30  # seconds for questions under way at the end
IDLE = 30  # seconds that a connection may be silent, and that a header may take to be whole


class Place(NamedTuple):
    """Where to listen, and how."""

    host: str
    port: int
    certificate: Path | None
    private_key: Path | None
    insecure: bool


class Prompt(HttpToolsProtocol):
    """uvicorn's protocol, which by itself waits for a header for ever."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a header."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take what came; a part of a header does not prolong the wait for the rest."""
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        super().connection_lost(exc)
        self._forget()

    def _wait(self) -> None:
        if self.cycle and not self.cycle.response_complete:  # a header is there, its answer not yet
            self._forget()
        elif self._late is None:
            self._late = self.loop.call_later(self.timeout_keep_alive, self.transport.abort)

    def _forget(self) -> None:
        if self._late:
            self._late.cancel()
            self._late = None


def run_service(
    folder: Path,
    ledger: Path,
    place: Place,
    limits: Limits,
    given: Mapping[str, Scalar] | None = None,
) -> None:
    """Answer questions until SIGTERM or Ctrl-C, then those under way, then return.

    `given`: settings of the group privacy, instead of the run's.
    SettingsError, RunError or LedgerError say what keeps it from starting.
    """
    check_address(place)
    model, mechanism = load_answering(run_folder.read_run(folder), given or {})
    torch.set_num_threads(1)  # batches are small; more threads would only wait for each other
    service = Service(model, mechanism, ledger, key_table_path(ledger), limits)
    server = uvicorn.Server(configure_server(create_app(service), place))
    with open_socket(place) as door:
        configure_logs()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)  # the server drains, then raises it again
        scheme = "https" if place.certificate else "http"
        print(f"serving {model.version}: {scheme}://{format_address(door)}", flush=True)
        server.run(sockets=[door])
    if not server.started:
        raise service.fault or RunError(f"{folder}: the service did not start; see its log")


def load_answering(run: Run, given: Mapping[str, Scalar]) -> tuple[ServedModel, Mechanism]:
    """Return a run's model, and the mechanism that its settings and those given name."""
    settings = override_group(run.settings, given, "privacy")
    model = load_served(run._replace(settings=settings))
    return model, build_mechanism(settings.privacy, model.classes)


def check_address(place: Place) -> None:
    """Refuse an address at which keys and messages would travel in clear: SettingsError."""
    if (place.certificate is None) != (place.private_key is None):
        raise SettingsError("--certificate and --private-key belong together; give both")
    for path in (place.certificate, place.private_key):
        if path and not path.is_file():
            raise SettingsError(
                f"{path} is no file; give PEM files as --certificate, --private-key"
            )
    if place.certificate is None and place.host not in LOOPBACK and not place.insecure:
        raise SettingsError(
            f"--host is {place.host!r} without a certificate: keys and messages would travel in "
            "clear; give --certificate and --private-key, or --insecure behind a proxy with TLS"
        )


def open_socket(place: Place) -> socket.socket:
    """Return an open socket; SettingsError where the address cannot be used."""
    try:
        family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
        return socket.create_server((place.host, place.port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise SettingsError(
            f"--host {place.host} --port {place.port}: {error}; choose another"
        ) from None


def format_address(door: socket.socket) -> str:
    """Return host and port as an address writes them."""
    host, port = door.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def configure_server(app: FastAPI, place: Place, idle: int = IDLE) -> uvicorn.Config:
    """Return the web server's settings; its own log has no place for what was sent.

    SettingsError where certificate and key are of no use.
    """
    found = uvicorn.Config(
        app,
        access_log=False,
        http=Prompt,
        log_config=None,
        server_header=False,
        ws="none",
        ssl_certfile=place.certificate,
        ssl_keyfile=place.private_key,
        timeout_keep_alive=idle,
        timeout_graceful_shutdown=DRAIN,
    )
    try:
        found.load()
    except OSError as error:  # ssl.SSLError is one
        raise SettingsError(
            f"--certificate {place.certificate}, --private-key {place.private_key}: {error}; must "
            "be a certificate with its chain, and its key without a passphrase, both in PEM"
        ) from None
    return found
