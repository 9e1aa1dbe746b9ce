"""The command `play`: a page on which to see what one message gives away."""

import tempfile
from pathlib import Path
from typing import Annotated

from fedcel.extras import require_extra
from sims.commands.options import (
    FinishedFolder,
    LocalHost,
    OpenToOthers,
    ServerPort,
    check_local_host,
    option,
)

EXAMPLES = ("fedcel play RUN", "fedcel play BENCH --variant none --variant cluster")


def play_command(
    folder: FinishedFolder,
    *,
    variants: Annotated[
        list[str] | None,
        option(
            "--variant",
            metavar="NAME",
            help="Show this variant of a bench; repeat for more. Default: the first four.",
        ),
    ] = None,
    host: LocalHost = "127.0.0.1",
    port: ServerPort = 8765,
    insecure: OpenToOthers = False,
) -> None:
    """Serve a page that shows what one message of an image leaks, until Ctrl-C.

    Pick, draw or upload an image. See what is sent, what attackers rebuild, and what private
    answers cost. Only this machine can open the page, and it loads nothing from the network.
    """
    require_extra("service")
    require_extra("report")
    hosts = check_local_host(host, insecure)
    import torch
    import uvicorn

    from sims.commands.listening import Endpoint, format_address, open_socket
    from sims.commands.web_server import configure_server, run_until_stopped
    from sims.play import create_app, open_playground
    from sims.progress import show_steps

    endpoint = Endpoint(host, port, insecure=insecure)
    torch.set_num_threads(1)  # one visitor, small batches
    with (
        tempfile.TemporaryDirectory(prefix="fedcel-play-") as ledgers,
        open_socket(endpoint) as listener,  # refused before the work
    ):
        with show_steps("preparing the playground") as show_step:
            playground = open_playground(folder, Path(ledgers), show_step, variants or ())
        try:
            if playground.note:
                print(playground.note)
            server = uvicorn.Server(configure_server(create_app(playground, hosts), endpoint))
            run_until_stopped(server, listener, f"playground: http://{format_address(listener)}")
        finally:
            playground.close()
