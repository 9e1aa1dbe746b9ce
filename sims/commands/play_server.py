"""Serve the playground: the same web server as the service's."""

from collections.abc import Sequence
from pathlib import Path

import torch
import uvicorn

from sims.commands.listening import Endpoint, format_address, open_socket
from sims.commands.web_server import configure_server, run_until_stopped
from sims.play import create_app, open_playground
from sims.progress import show_steps


def run_playground(
    folder: Path,
    ledgers: Path,
    host: str,
    port: int,
    *,
    variants: Sequence[str],
    hosts: Sequence[str] | None,
) -> None:
    """Answer until SIGTERM or Ctrl-C.

    Args:
        folder: Of a run or a bench.
        ledgers: For the accounts of private answers.
        host: Address to listen on.
        port: Port to listen on; 0: a free one.
        variants: Of the bench; none: the first ones.
        hosts: Names that requests may call this machine by; None: any.

    Raises:
        RunError: A run cannot be read.
        SettingsError: The address cannot be used, or a variant is not there.
    """
    endpoint = Endpoint(host, port, None, None, insecure=hosts is None)
    torch.set_num_threads(1)  # one visitor, small batches
    with open_socket(endpoint) as listener:  # refused before the work
        with show_steps("preparing the playground") as show_step:
            playground = open_playground(folder, ledgers, show_step, variants)
        if playground.note:
            print(playground.note)
        server = uvicorn.Server(configure_server(create_app(playground, hosts), endpoint))
        try:
            run_until_stopped(server, listener, f"playground: http://{format_address(listener)}")
        finally:
            playground.close()
