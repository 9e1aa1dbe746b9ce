"""The command `play`: a page on which to see what one message gives away."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from fedcel.extras import require_extra
from sims.commands.options import LocalHost, OpenToOthers, ServerPort, check_local_host

EXAMPLES = ("fedcel play RUN", "fedcel play BENCH --variant none --variant cluster")


def play_command(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_BENCH", help="Folder of a finished run or bench.", show_default=False
        ),
    ],
    *,
    variants: Annotated[
        list[str] | None,
        typer.Option(
            "--variant",
            metavar="NAME",
            help="Show this variant of a bench; repeat for more. Default: the first four.",
            show_default=False,
        ),
    ] = None,
    host: LocalHost = "127.0.0.1",
    port: ServerPort = 8765,
    insecure: OpenToOthers = False,
) -> None:
    """Open a page that shows what one message of an image gives away, until Ctrl-C.

    Pick, draw or upload an image; see what is sent, what attackers make of it, and what private
    answers cost. It answers this machine alone, and needs nothing from the network.
    """
    require_extra("service")
    require_extra("report")
    hosts = check_local_host(host, insecure)
    from sims.commands.play_server import run_playground

    with tempfile.TemporaryDirectory(prefix="fedcel-play-") as ledgers:
        run_playground(
            folder,
            Path(ledgers),
            host,
            port,
            variants=variants or (),
            hosts=hosts,
        )
