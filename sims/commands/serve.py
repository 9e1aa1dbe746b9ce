"""The command `serve`: answer split inference over HTTP."""

import math
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedcel.errors import SettingsError
from fedcel.extras import require_extra
from sims.commands.options import RunFolder, ServerPort, option
from sims.overrides import parse_overrides

VARIABLES = "FEDCEL_SERVE"
"""Beginning of environment variables that stand for an option, as containers are configured."""
EXAMPLES = (
    "fedcel serve RUN",
    "fedcel serve RUN --engine onnx",
    "fedcel serve RUN --host 0.0.0.0 --certificate chain.pem --private-key key.pem",
)


def serve_command(
    run: RunFolder,
    *,
    assignments: Annotated[
        list[str] | None,
        option(
            "--set",
            envvar=f"{VARIABLES}_SET",
            metavar="KEY=VALUE",
            help="Override a setting of the group `privacy`; repeat for more.",
        ),
    ] = None,
    ledger: Annotated[
        str | None,
        option(
            metavar="LEDGER",
            help="Budgets: a file, made if missing, or postgresql://USER@HOST/DATABASE, which "
            "several hosts may share; default: RUN/budget.db.",
        ),
    ] = None,
    keys: Annotated[
        Path | None, option(help="File of clients' keys; default: LEDGER.keys.json.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: ServerPort = 8443,
    certificate: Annotated[Path | None, option(help="PEM file, with its chain.")] = None,
    private_key: Annotated[Path | None, option(help="PEM file of the certificate's key.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow plain HTTP beyond this machine.")
    ] = False,
    queue: Annotated[int, typer.Option(min=1, help="Largest number of waiting queries.")] = 256,
    allow_chance: Annotated[
        bool,
        typer.Option("--allow-chance", help="Also serve answers that are no better than a guess."),
    ] = False,
    engine: Annotated[
        Literal["torch", "onnx"],
        typer.Option(help="Library that computes the heads; onnx is faster."),
    ] = "torch",
    rate_limit: Annotated[
        float, typer.Option(help="Average requests per second of one client, for each URL path.")
    ] = 50.0,
) -> None:
    """Answer split inference over HTTP with private logits, until Ctrl-C or SIGTERM.

    --set takes settings of the group `privacy`, for this service only. The command prints the
    accuracy of its answers and refuses to serve answers that are no better than a guess.
    """
    require_extra("service")
    if engine == "onnx":
        require_extra("onnx")
        require_extra("export")
    from clients.service.access import key_table_path
    from clients.service.service import Limits
    from fedcel.privacy.ledger import parse_ledger_address
    from sims.commands.listening import Endpoint
    from sims.commands.web_server import run_service

    if not 0 < rate_limit < math.inf:
        raise SettingsError(f"--rate-limit is {rate_limit:g}, must be above 0; try 50")
    address = parse_ledger_address(ledger or run / "budget.db")
    key_table_path(address, keys)  # refused before the run is read
    run_service(
        run,
        address,
        Endpoint(host, port, certificate, private_key, insecure),
        Limits(queue=queue, rate=rate_limit),
        overrides=parse_overrides(assignments),
        allow_chance=allow_chance,
        keys=keys,
        engine=engine,
    )
