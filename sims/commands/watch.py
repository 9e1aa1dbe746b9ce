"""The command `watch`: a page that follows a run or a bench, or shows one that has ended."""

from pathlib import Path
from typing import Annotated

from fedcel.extras import require_extra
from sims.commands.options import LocalHost, OpenToOthers, ServerPort, argument, check_local_host

EXAMPLES = ("fedcel watch RUN", "fedcel watch BENCH --port 0")
PORT = 8766


def watch_command(
    folder: Annotated[
        Path,
        argument(
            metavar="RUN_OR_BENCH",
            help="Folder of a run or bench, running or ended, also of a deployed run.",
        ),
    ],
    *,
    host: LocalHost = "127.0.0.1",
    port: ServerPort = PORT,
    insecure: OpenToOthers = False,
) -> None:
    """Serve a page that follows a run or a bench by its folder, until Ctrl-C.

    It only reads the folder. Only this machine can open the page, and it loads nothing from the
    network.
    """
    require_extra("service")
    require_extra("report")
    hosts = check_local_host(host, insecure)
    import uvicorn

    from sims.commands.listening import Endpoint, format_address, open_socket
    from sims.commands.web_server import configure_server, run_until_stopped
    from sims.watch import create_app, describe_folder

    endpoint = Endpoint(host, port, insecure=insecure)
    describe_folder(folder)  # refused at the door
    with open_socket(endpoint) as listener:
        server = uvicorn.Server(configure_server(create_app(folder, hosts), endpoint))
        run_until_stopped(server, listener, f"watch: http://{format_address(listener)}")
