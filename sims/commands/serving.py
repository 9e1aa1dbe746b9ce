"""Commands of a service: serve, and the ledger of budgets and keys."""

from pathlib import Path
from typing import Annotated

import typer

from fedcel.errors import SettingsError
from fedcel.extras import require_extra
from sims.commands.options import Assignments, RunFolder, format_examples
from sims.overrides import parse_overrides

ledger = typer.Typer(
    no_args_is_help=True,
    help="Budgets and keys of a service.",
    callback=lambda: require_extra("service"),
)

LedgerFile = Annotated[
    Path, typer.Argument(metavar="LEDGER", help="File of budgets.", show_default=False)
]


def serve(
    run: RunFolder,
    *,
    assignments: Assignments = None,
    ledger: Annotated[
        Path | None,
        typer.Option(
            help="File of budgets, made if missing; default: RUN/budget.db.", show_default=False
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8443,
    certificate: Annotated[
        Path | None, typer.Option(help="PEM file, with its chain.", show_default=False)
    ] = None,
    private_key: Annotated[
        Path | None, typer.Option(help="PEM file of the certificate's key.", show_default=False)
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow plain HTTP beyond this machine.")
    ] = False,
    queue: Annotated[int, typer.Option(min=1, help="Queries that wait, at most.")] = 256,
    rate_limit: Annotated[float, typer.Option(help="Queries a second of one client.")] = 50.0,
) -> None:
    """Answer split inference over HTTP with private logits, until Ctrl-C or SIGTERM.

    --set takes settings of the group `privacy`, for this service alone.
    """
    require_extra("service")
    from clients.service.app import Limits
    from sims.commands.run_service import Endpoint, run_service

    if not 0 < rate_limit < float("inf"):
        raise SettingsError(f"--rate-limit is {rate_limit:g}, must be above 0; try 50")
    run_service(
        run,
        ledger or run / "budget.db",
        Endpoint(host, port, certificate, private_key, insecure),
        Limits(queue=queue, rate=rate_limit),
        overrides=parse_overrides(assignments),
    )


@ledger.command("list", epilog=format_examples("fedcel ledger list RUN/budget.db"))
def show_accounts(path: LedgerFile) -> None:
    """Show what each client has left, and the keys."""
    from sims.commands import ledger_actions

    print(ledger_actions.list_accounts(path))


@ledger.command(
    "top-up", epilog=format_examples("fedcel ledger top-up LEDGER --client NAME --epsilon 50")
)
def top_up_client(
    path: LedgerFile,
    client: Annotated[str, typer.Option(help="Name of the client.", show_default=False)],
    epsilon: Annotated[float, typer.Option(help="What to add.", show_default=False)],
) -> None:
    """Grant a client more epsilon."""
    from sims.commands import ledger_actions

    print(ledger_actions.grant_client(path, client, epsilon))


@ledger.command("limit")
def cap_model(
    path: LedgerFile,
    model: Annotated[
        str, typer.Option(metavar="VERSION", help="As `serve` prints it.", show_default=False)
    ],
    epsilon: Annotated[
        float, typer.Option(help="For all clients together; 0: nothing more.", show_default=False)
    ],
) -> None:
    """Set what all clients together may spend on a model version."""
    from sims.commands import ledger_actions

    print(ledger_actions.limit_model(path, model, epsilon))


@ledger.command("export")
def write_log(
    path: LedgerFile, out: Annotated[Path, typer.Option(help="File to write.", show_default=False)]
) -> None:
    """Write the log as JSON lines."""
    from sims.commands import ledger_actions

    print(ledger_actions.export_log(path, out))


@ledger.command("verify")
def check_ledger(path: LedgerFile) -> None:
    """Recompute every balance and every link of the log."""
    from sims.commands import ledger_actions

    print(ledger_actions.verify_ledger(path))


@ledger.command(
    "keys",
    epilog=format_examples(
        "fedcel ledger keys LEDGER --client NAME --days 90", "fedcel ledger keys LEDGER --revoke ID"
    ),
)
def manage_keys(
    path: LedgerFile,
    *,
    client: Annotated[
        str | None,
        typer.Option(help="Make a key for this client, new or known.", show_default=False),
    ] = None,
    revoke: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Forget the key with this id.", show_default=False),
    ] = None,
    days: Annotated[
        float | None, typer.Option(help="Until the key expires; default: never.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Granted to a new client; default: 100.")
    ] = None,
) -> None:
    """Make a client's key, shown once; or revoke one."""
    from sims.commands import ledger_actions

    if (client is None) == (revoke is None):
        raise SettingsError("give one of --client and --revoke: a key to make, or one to forget")
    if client is not None:
        print(ledger_actions.issue_key(path, client, days, epsilon))
        return
    assert revoke is not None
    for name, value in (("days", days), ("epsilon", epsilon)):
        if value is not None:
            raise SettingsError(
                f"--{name} is {value:g}, but --revoke makes no key that it could be for; leave it "
                "out, or make a key with --client"
            )
    print(ledger_actions.revoke_key(path, revoke))
