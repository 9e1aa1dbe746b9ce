"""The command `ledger`: budgets and keys of a service's clients.

Each command returns what is printed. Imports that take seconds are made by the commands.
"""

import re
import time
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedcel.errors import FailedError, SettingsError
from fedcel.extras import require_extra
from fedcel.privacy import to_granted_micro
from sims.commands.options import argument, format_examples, option

if TYPE_CHECKING:
    from fedcel.privacy.ledger import Ledger

COMPOSITION_DELTA = 1e-6  # in addition to that of the answers themselves
FIRST_GRANT = 100.0  # epsilon of a new client
MICRO = 1e6

ledger_commands = typer.Typer(
    no_args_is_help=True,
    help="Budgets and keys of a service.",
    callback=lambda: require_extra("service"),
    result_callback=print,
)

LedgerName = Annotated[
    str, argument(metavar="LEDGER", help="Budgets: a file, or postgresql://USER@HOST/DATABASE.")
]
KeyFile = Annotated[
    Path | None, option("--keys", help="File of clients' keys; default: LEDGER.keys.json.")
]


@ledger_commands.command("list", epilog=format_examples("fedcel ledger list RUN/budget.db"))
def list_accounts(ledger: LedgerName, *, keys: KeyFile = None) -> str:
    """Show each client's remaining budget, and the keys."""
    from clients.service.access import read_keys
    from fedcel.privacy import compose_prices

    key_table = find_keys(ledger, keys)
    lines = [
        f"{'client':<24} {'granted':>12} {'spent (sum)':>12} {'left':>12} {'delta':>10} "
        f"{'together':>10}"
    ]
    with open_ledger(ledger) as opened:
        for client, (granted, spent, remaining, delta) in opened.clients().items():
            prices = {
                (micro / MICRO, price_delta): count
                for (micro, price_delta), count in opened.prices(client).items()
            }
            together = compose_prices(prices, delta + COMPOSITION_DELTA) if prices else 0.0
            lines.append(
                f"{client:<24} {granted / MICRO:>12.6f} {spent / MICRO:>12.6f} "
                f"{remaining / MICRO:>12.6f} {delta:>10.2g} {together:>10.4g}"
            )
    lines.append("together: epsilon of all answers so far at their deltas and 1e-6 (PLD)")
    lines += ["", f"{'key':<24} {'client':<24} expires"]
    for key in read_keys(key_table):
        expiry = "never"
        if key.expires is not None:
            expiry = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(key.expires))
            expiry += " (expired)" if time.time() >= key.expires else ""
        lines.append(f"{key.id:<24} {key.client:<24} {expiry}")
    return "\n".join(lines)


@ledger_commands.command(
    "top-up", epilog=format_examples("fedcel ledger top-up LEDGER --client NAME --epsilon 50")
)
def grant_client(
    ledger: LedgerName,
    client: Annotated[str, option(help="Name of the client.")],
    epsilon: Annotated[float, option(help="Epsilon to add.")],
) -> str:
    """Grant a client more epsilon."""
    micro = to_granted_micro(epsilon, "--epsilon")
    with open_ledger(ledger) as opened:
        names = opened.clients()
        if client not in names:
            nearest = get_close_matches(client, names, 1, 0)
            hint = "".join(f"; did you mean {name!r}?" for name in nearest)
            raise SettingsError(
                f"client {client!r} has no account in {opened.address}{hint}; `fedcel ledger keys "
                f"{opened.address} --client NAME` opens one"
            )
        opened.grant(client, micro)
        return f"{client} has {opened.balance(client).remaining / MICRO:g} left"


@ledger_commands.command("limit")
def limit_model(
    ledger: LedgerName,
    model: Annotated[str, option(metavar="VERSION", help="Model version, as printed by `serve`.")],
    epsilon: Annotated[float, option(help="Limit for all clients together; 0: no more queries.")],
) -> str:
    """Limit the total epsilon of all clients on a model version."""
    from clients.service_messages import VERSION_PATTERN

    if not re.fullmatch(VERSION_PATTERN, model):
        raise SettingsError(
            f"--model is {model!r}, must be 32 hexadecimal digits, as `fedcel serve` prints them"
        )
    micro = to_granted_micro(epsilon, "--epsilon") if epsilon else 0
    with open_ledger(ledger) as opened:
        opened.limit(model, micro)
    return f"all clients together may spend {micro / MICRO:g} on model {model}"


@ledger_commands.command("export")
def export_log(
    ledger: LedgerName,
    out: Annotated[Path, option(help="File to write.")],
) -> str:
    """Write the log as JSON lines."""
    with open_ledger(ledger) as opened:
        opened.export(out)
    return f"log: {out}"


@ledger_commands.command("verify")
def verify_ledger(ledger: LedgerName) -> str:
    """Recompute every balance and every link of the log."""
    with open_ledger(ledger) as opened:
        if problems := opened.verify():
            raise FailedError(f"{opened.address} was changed or damaged:\n" + "\n".join(problems))
        return f"{opened.address}: {len(opened.rows())} rows, all balances and links are right"


@ledger_commands.command(
    "copy",
    epilog=format_examples(
        "fedcel ledger copy RUN/budget.db postgresql://fedcel@db.example/fedcel"
    ),
)
def copy_ledger(
    source: Annotated[
        str, argument(metavar="FROM", help="Ledger to copy: a file or postgresql://...")
    ],
    target: Annotated[str, argument(metavar="TO", help="Empty or new ledger.")],
) -> str:
    """Copy a whole ledger to another file or database; stop its services first."""
    from fedcel.privacy.ledger import Ledger

    with open_ledger(source) as opened, Ledger.open(target) as copy:
        sums = opened.copy_to(copy)
        return (
            f"{copy.address}: {sums.rows} rows and {sums.answers} answers of {sums.clients} "
            f"clients, granted {sums.granted / MICRO:g}, spent {sums.spent / MICRO:g}, as in "
            f"{opened.address}. Serve with the copy alone from now on: the old one still pays."
        )


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
    client: Annotated[str | None, option(help="Make a key for this client, new or known.")] = None,
    revoke: Annotated[str | None, option(metavar="ID", help="Id of the key to revoke.")] = None,
    days: Annotated[
        float | None, typer.Option(help="Days until the key expires; default: never.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Budget of a new client; default: 100.")
    ] = None,
) -> str:
    """Create a client's key, which is shown once, or revoke one."""
    from clients.service.access import remove_key

    if (client is None) == (revoke is None):
        raise SettingsError("give one of --client and --revoke: a key to make, or one to forget")
    if client is not None:
        return issue_key(ledger, client, days, epsilon, keys=keys)
    assert revoke is not None
    for name, value in (("days", days), ("epsilon", epsilon)):
        if value is not None:
            raise SettingsError(
                f"--{name} is {value:g}, but --revoke makes no key that it could be for; leave it "
                "out, or make a key with --client"
            )
    remove_key(find_keys(ledger, keys), revoke)
    return f"key {revoke} is revoked"


def issue_key(
    ledger: str | Path,
    client: str,
    days: float | None,
    epsilon: float | None,
    *,
    keys: Path | None = None,
) -> str:
    """Make a key; a client that the ledger does not know is granted `epsilon`, None: 100.

    SettingsError where there is nothing to grant it to, or on a name, days or amount that is none.
    """
    from clients.service.access import add_key, check_client_name, read_keys
    from fedcel.privacy.ledger import Ledger

    micro = to_granted_micro(FIRST_GRANT if epsilon is None else epsilon, "--epsilon")
    if days is not None and not 0 < days < 36_500:
        raise SettingsError(f"--days is {days:g}, must be above 0 and below 36500")
    check_client_name(client)
    key_table = find_keys(ledger, keys)
    read_keys(key_table)  # a damaged file is told before anything is granted
    with Ledger.open(ledger) as opened:
        is_new = opened.admit(client, micro)
        remaining = opened.balance(client).remaining / MICRO
    if epsilon is not None and not is_new:
        raise SettingsError(
            f"--epsilon is {epsilon:g}, but {client} has an account already, with {remaining:g} "
            "left; leave --epsilon out, or use `fedcel ledger top-up`"
        )
    key = add_key(key_table, client, days, time.time())
    how = "is new and was granted" if is_new else "has"
    return f"key: {key}\nIt is not shown again. {client} {how} epsilon {remaining:g}."


def open_ledger(ledger: str | Path) -> "Ledger":
    """Return a ledger that is there; SettingsError where it is not."""
    from fedcel.privacy.ledger import Ledger, parse_ledger_address

    address = parse_ledger_address(ledger)
    if isinstance(address, Path) and not address.is_file():
        raise SettingsError(f"{address} is no ledger yet; `fedcel ledger keys` makes one")
    return Ledger.open(address)


def find_keys(ledger: str | Path, keys: Path | None) -> Path:
    """Return the file of a ledger's keys; SettingsError where a database has none named."""
    from clients.service.access import key_table_path
    from fedcel.privacy.ledger import parse_ledger_address

    return key_table_path(parse_ledger_address(ledger), keys)
