"""The operator's view of a ledger: who may spend what, and whose keys are valid."""

import re
import time
from difflib import get_close_matches
from pathlib import Path

from clients.service.access import add_key, check_client_name, key_table_path, read_keys, remove_key
from clients.service_messages import VERSION_PATTERN
from fedcel.errors import FailedError, SettingsError
from fedcel.privacy import compose_prices
from fedcel.privacy.ledger import (
    MICRO,
    Ledger,
    LedgerAddress,
    parse_ledger_address,
    to_granted_micro,
)

COMPOSITION_DELTA = 1e-6  # beside that of the answers themselves
FIRST_GRANT = 100.0  # epsilon of a new client


def open_ledger(ledger: str | LedgerAddress) -> Ledger:
    """Return a ledger that is there; SettingsError where it is not."""
    address = parse_ledger_address(ledger)
    if isinstance(address, Path) and not address.is_file():
        raise SettingsError(f"{address} is no ledger yet; `fedcel ledger keys` makes one")
    return Ledger.open(address)


def list_accounts(ledger: str | LedgerAddress, keys: Path | None = None) -> str:
    """Return each client's account in epsilon, and its keys.

    Spent is the sum; `compose_prices` the epsilon of all answers so far, at their own deltas and
    1e-6.
    """
    key_table = key_table_path(parse_ledger_address(ledger), keys)
    with open_ledger(ledger) as opened:
        balances = opened.clients()
        composed = {
            client: compose_spent(opened, client, balance.delta)
            for client, balance in balances.items()
        }
    lines = [
        f"{'client':<24} {'granted':>12} {'spent (sum)':>12} {'left':>12} {'delta':>10} "
        f"{'together':>10}"
    ]
    for client, balance in sorted(balances.items()):
        amounts = " ".join(f"{micro / MICRO:>12.6f}" for micro in balance[:3])
        lines.append(f"{client:<24} {amounts} {balance.delta:>10.2g} {composed[client]:>10.4g}")
    lines.append("together: epsilon of all answers so far at their deltas and 1e-6 (PLD)")
    lines += ["", f"{'key':<24} {'client':<24} expires"]
    for key in read_keys(key_table):
        lines.append(f"{key.id:<24} {key.client:<24} {format_expiry(key.expires)}")
    return "\n".join(lines)


def compose_spent(ledger: Ledger, client: str, delta: float) -> float:
    """Return what a client's answers cost together, by privacy loss distributions; 0 for none."""
    prices = {
        (micro / MICRO, answer_delta): count
        for (micro, answer_delta), count in ledger.prices(client).items()
    }
    return compose_prices(prices, delta + COMPOSITION_DELTA).epsilon if prices else 0.0


def format_expiry(expires: int | None) -> str:
    """Return a moment as people read it."""
    if expires is None:
        return "never"
    moment = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(expires))
    return f"{moment} (expired)" if time.time() >= expires else moment


def grant_client(ledger: str | LedgerAddress, client: str, epsilon: float) -> str:
    """Grant a known client more epsilon; SettingsError on another, or an amount that is none."""
    micro = read_grant(epsilon)
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
        remaining = opened.balance(client).remaining
    return f"{client} has {remaining / MICRO:g} left"


def limit_model(ledger: str | LedgerAddress, model: str, epsilon: float) -> str:
    """Set what all clients together may spend on a model version, 0: nothing.

    SettingsError on a version or an amount that is none.
    """
    if not re.fullmatch(VERSION_PATTERN, model):
        raise SettingsError(
            f"--model is {model!r}, must be 32 hexadecimal digits, as `fedcel serve` prints them"
        )
    micro = read_grant(epsilon) if epsilon else 0
    with open_ledger(ledger) as opened:
        opened.limit(model, micro)
    return f"all clients together may spend {micro / MICRO:g} on model {model}"


def read_grant(epsilon: float) -> int:
    """Return an amount of the command line in micro-epsilons; SettingsError on one that is none."""
    try:
        return to_granted_micro(epsilon, "--epsilon")
    except ValueError as error:
        raise SettingsError(str(error)) from None


def export_log(ledger: str | LedgerAddress, out: Path) -> str:
    """Write the ledger's log as JSON lines."""
    with open_ledger(ledger) as opened:
        opened.export(out)
    return f"log: {out}"


def verify_ledger(ledger: str | LedgerAddress) -> str:
    """Recompute every balance and link; FailedError lists what is wrong."""
    with open_ledger(ledger) as opened:
        problems = opened.verify()
        count = len(opened.rows())
    if problems:
        raise FailedError(f"{opened.address} was changed or damaged:\n" + "\n".join(problems))
    return f"{opened.address}: {count} rows, all balances and links are right"


def copy_ledger(source: str | LedgerAddress, target: str | LedgerAddress) -> str:
    """Copy a ledger to an empty one, whole or not at all.

    SettingsError where there is none to copy, or the target is not empty.
    """
    with open_ledger(source) as opened, Ledger.open(target) as copy:
        sums = opened.copy_to(copy)
        return (
            f"{copy.address}: {sums.rows} rows and {sums.answers} answers of {sums.clients} "
            f"clients, granted {sums.granted / MICRO:g}, spent {sums.spent / MICRO:g}, as in "
            f"{opened.address}. Serve with the copy alone from now on: the old one still pays."
        )


def issue_key(
    ledger: str | LedgerAddress,
    client: str,
    days: float | None,
    epsilon: float | None,
    *,
    keys: Path | None = None,
) -> str:
    """Return a new key; a client that the ledger does not know is granted `epsilon`, None: 100.

    SettingsError where there is nothing to grant it to, or on a name, days or amount that is none.
    """
    micro = read_grant(FIRST_GRANT if epsilon is None else epsilon)
    if days is not None and not 0 < days < 36_500:
        raise SettingsError(f"--days is {days:g}, must be above 0 and below 36500")
    check_client_name(client)
    address = parse_ledger_address(ledger)
    key_table = key_table_path(address, keys)
    read_keys(key_table)  # a damaged file is told before anything is granted
    with Ledger.open(address) as opened:
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


def revoke_key(ledger: str | LedgerAddress, key_id: str, keys: Path | None = None) -> str:
    """Forget a key; running services refuse it at once."""
    remove_key(key_table_path(parse_ledger_address(ledger), keys), key_id)
    return f"key {key_id} is revoked"
