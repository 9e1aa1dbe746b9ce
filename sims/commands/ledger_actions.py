"""The operator's view of a ledger: who may spend what, and whose keys are valid."""

import re
import time
from difflib import get_close_matches
from fractions import Fraction
from pathlib import Path

from clients.service import auth
from clients.service.schema import VERSION
from fedcel.errors import FailedError, SettingsError
from fedcel.privacy import compose_prices
from fedcel.privacy.ledger import MICRO, Ledger

SLIGHT = 1e-6  # of delta, beside that of the answers themselves
NEW = 100.0  # epsilon of a new client


def open_ledger(path: Path) -> Ledger:
    """Return a ledger that is there; SettingsError where it is not."""
    if not path.is_file():
        raise SettingsError(f"{path} is no ledger yet; `fedcel ledger keys` makes one")
    return Ledger.open(path)


def list_accounts(path: Path) -> str:
    """Return each client's account in epsilon, and its keys.

    Spent is the sum; `compose_prices` the epsilon of all answers so far, at their own deltas and
    1e-6.
    """
    with open_ledger(path) as ledger:
        accounts = ledger.clients()
        costs = {name: compose_spent(ledger, name, found.delta) for name, found in accounts.items()}
    head = ("granted", "spent (sum)", "left")
    lines = [f"{'client':<24} {' '.join(f'{h:>12}' for h in head)} {'delta':>10} {'together':>10}"]
    for name, found in sorted(accounts.items()):
        numbers = [f"{value / MICRO:>12.6f}" for value in found[:3]]
        lines.append(f"{name:<24} {' '.join(numbers)} {found.delta:>10.2g} {costs[name]:>10.4g}")
    lines.append("together: epsilon of all answers so far at their deltas and 1e-6 (PLD)")
    entries = auth.read_keys(auth.key_table_path(path))
    lines += ["", f"{'key':<24} {'client':<24} expires"]
    for entry in entries:
        lines.append(f"{entry.id:<24} {entry.client:<24} {format_moment(entry.expires)}")
    return "\n".join(lines)


def compose_spent(ledger: Ledger, client: str, delta: float) -> float:
    """Return what a client's answers cost together, by privacy loss distributions; 0 for none."""
    prices = {(micro / MICRO, own): n for (micro, own), n in ledger.prices(client).items()}
    return compose_prices(prices, delta + SLIGHT).epsilon if prices else 0.0


def format_moment(expires: int | None) -> str:
    """Return a moment as people read it."""
    if expires is None:
        return "never"
    day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(expires))
    return f"{day} (expired)" if time.time() >= expires else day


def grant_client(path: Path, client: str, epsilon: float) -> str:
    """Grant a known client more epsilon; SettingsError on another, or an amount that is none."""
    amount = to_granted_micro(epsilon)
    with open_ledger(path) as ledger:
        check_known(client, path, ledger)
        ledger.grant(client, amount)
        left = ledger.balance(client).remaining
    return f"{client} has {left / MICRO:g} left"


def check_known(client: str, path: Path, ledger: Ledger) -> None:
    """Refuse a client that has no account, perhaps a typo: SettingsError."""
    names = ledger.clients()
    if client in names:
        return
    near = "".join(f"; did you mean {name!r}?" for name in get_close_matches(client, names, 1, 0))
    raise SettingsError(
        f"client {client!r} has no account in {path}{near}; `fedcel ledger keys {path} --client "
        "NAME` opens one"
    )


def limit_model(path: Path, model: str, epsilon: float) -> str:
    """Set what all clients together may spend on a model version, 0: nothing.

    SettingsError on a version or an amount that is none.
    """
    if not re.fullmatch(VERSION, model):
        raise SettingsError(
            f"--model is {model!r}, must be 32 hexadecimal digits, as `fedcel serve` prints them"
        )
    amount = to_granted_micro(epsilon) if epsilon else 0
    with open_ledger(path) as ledger:
        ledger.limit(model, amount)
    return f"all clients together may spend {amount / MICRO:g} on model {model}"


def to_granted_micro(epsilon: float) -> int:
    """Return epsilon in millionths, never more than asked; SettingsError below the first."""
    if not 1 / MICRO <= epsilon < 1e9:
        raise SettingsError(f"epsilon is {epsilon}, must be at least 1e-06 and below 1e9")
    return int(Fraction(str(epsilon)) * MICRO)


def export_log(path: Path, out: Path) -> str:
    """Write the ledger's log as JSON lines."""
    with open_ledger(path) as ledger:
        ledger.export(out)
    return f"log: {out}"


def verify_ledger(path: Path) -> str:
    """Recompute every balance and link; FailedError lists what is wrong."""
    with open_ledger(path) as ledger:
        faults, count = ledger.verify(), len(ledger.rows())
    if faults:
        raise FailedError(f"{path} was changed or damaged:\n" + "\n".join(faults))
    return f"{path}: {count} rows, all balances and links are right"


def issue_key(path: Path, client: str, days: float | None, epsilon: float | None) -> str:
    """Return a new key; a client that the ledger does not know is granted `epsilon`, None: 100.

    SettingsError where there is nothing to grant it to, or on a name, days or amount that is none.
    """
    amount = to_granted_micro(NEW if epsilon is None else epsilon)
    if days is not None and not 0 < days < 36_500:
        raise SettingsError(f"--days is {days:g}, must be above 0 and below 36500")
    auth.check_client(client)
    keys = auth.key_table_path(path)
    auth.read_keys(keys)  # a damaged file is told before anything is granted
    with Ledger.open(path) as ledger:
        new = ledger.admit(client, amount)
        left = ledger.balance(client).remaining / MICRO
    if epsilon is not None and not new:
        raise SettingsError(
            f"--epsilon is {epsilon:g}, but {client} has an account already, with {left:g} left; "
            "leave --epsilon out, or use `fedcel ledger top-up`"
        )
    key = auth.add_key(keys, client, days, time.time())
    how = "is new and was granted" if new else "has"
    return f"key: {key}\nIt is not shown again. {client} {how} epsilon {left:g}."


def revoke_key(path: Path, name: str) -> str:
    """Forget a key; running services refuse it at once."""
    auth.revoke_key(auth.key_table_path(path), name)
    return f"key {name} is revoked"
