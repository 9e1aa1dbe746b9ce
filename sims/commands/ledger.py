"""The command `ledger`: budgets and keys of a service."""

from pathlib import Path
from typing import Annotated

import typer

from fedcel.errors import SettingsError
from fedcel.extras import require_extra
from sims.commands.options import format_examples

ledger_commands = typer.Typer(
    no_args_is_help=True,
    help="Budgets and keys of a service.",
    callback=lambda: require_extra("service"),
)

LedgerName = Annotated[
    str,
    typer.Argument(
        metavar="LEDGER",
        help="Budgets: a file, or postgresql://USER@HOST/DATABASE.",
        show_default=False,
    ),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--keys", help="File of clients' keys; default: LEDGER.keys.json.", show_default=False
    ),
]


@ledger_commands.command("list", epilog=format_examples("fedcel ledger list RUN/budget.db"))
def show_accounts(ledger: LedgerName, *, keys: KeyFile = None) -> None:
    """Show what each client has left, and the keys."""
    from sims.commands import ledger_actions

    print(ledger_actions.list_accounts(ledger, keys))


@ledger_commands.command(
    "top-up", epilog=format_examples("fedcel ledger top-up LEDGER --client NAME --epsilon 50")
)
def top_up_client(
    ledger: LedgerName,
    client: Annotated[str, typer.Option(help="Name of the client.", show_default=False)],
    epsilon: Annotated[float, typer.Option(help="What to add.", show_default=False)],
) -> None:
    """Grant a client more epsilon."""
    from sims.commands import ledger_actions

    print(ledger_actions.grant_client(ledger, client, epsilon))


@ledger_commands.command("limit")
def cap_model(
    ledger: LedgerName,
    model: Annotated[
        str, typer.Option(metavar="VERSION", help="As `serve` prints it.", show_default=False)
    ],
    epsilon: Annotated[
        float, typer.Option(help="For all clients together; 0: nothing more.", show_default=False)
    ],
) -> None:
    """Set what all clients together may spend on a model version."""
    from sims.commands import ledger_actions

    print(ledger_actions.limit_model(ledger, model, epsilon))


@ledger_commands.command("export")
def write_log(
    ledger: LedgerName,
    out: Annotated[Path, typer.Option(help="File to write.", show_default=False)],
) -> None:
    """Write the log as JSON lines."""
    from sims.commands import ledger_actions

    print(ledger_actions.export_log(ledger, out))


@ledger_commands.command("verify")
def check_ledger(ledger: LedgerName) -> None:
    """Recompute every balance and every link of the log."""
    from sims.commands import ledger_actions

    print(ledger_actions.verify_ledger(ledger))


@ledger_commands.command(
    "copy",
    epilog=format_examples(
        "fedcel ledger copy RUN/budget.db postgresql://fedcel@db.example/fedcel"
    ),
)
def copy_accounts(
    source: Annotated[
        str, typer.Argument(metavar="FROM", help="A ledger, as of `list`.", show_default=False)
    ],
    target: Annotated[
        str,
        typer.Argument(metavar="TO", help="An empty ledger, or none yet.", show_default=False),
    ],
) -> None:
    """Copy a ledger whole to another file or database; stop its services first."""
    from sims.commands import ledger_actions

    print(ledger_actions.copy_ledger(source, target))


@ledger_commands.command(
    "keys",
    epilog=format_examples(
        "fedcel ledger keys LEDGER --client NAME --days 90", "fedcel ledger keys LEDGER --revoke ID"
    ),
)
def manage_keys(
    ledger: LedgerName,
    *,
    keys: KeyFile = None,
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
        print(ledger_actions.issue_key(ledger, client, days, epsilon, keys=keys))
        return
    assert revoke is not None
    for name, value in (("days", days), ("epsilon", epsilon)):
        if value is not None:
            raise SettingsError(
                f"--{name} is {value:g}, but --revoke makes no key that it could be for; leave it "
                "out, or make a key with --client"
            )
    print(ledger_actions.revoke_key(ledger, revoke, keys))
