"""Does the ledger hold what its log says? Everything is computed anew from the log."""

import sqlite3
from collections.abc import Iterator
from hashlib import sha256

from fedcel.privacy.ledger.books import Account, Name
from fedcel.privacy.ledger.log import START, Entry, Row, link_entry, read_log

Accounts = dict[Name, Account]
Bodies = dict[str, tuple[str, str, bytes]]


def audit_ledger(db: sqlite3.Connection) -> list[str]:
    """Return one sentence for each thing that is wrong, none for a sound ledger."""
    found = db.execute("PRAGMA integrity_check").fetchall()
    problems = [f"SQLite: {text}" for (text,) in found if text != "ok"]
    accounts: Accounts = {}
    bodies: Bodies = {}
    digests: dict[str, bytes] = {}
    before, expected = START, 1
    for row in read_log(db):
        problems += _chain(row, before, expected)
        problems += [f"row {row.position}: {text}" for text in _replay(row.entry, accounts, bodies)]
        if row.entry.kind == "answer":
            digests[row.entry.request] = row.entry.content
        before, expected = row.link, row.position + 1
    return [*problems, *_balances(db, accounts), *_answers(db, digests)]


def _chain(row: Row, before: bytes, expected: int) -> Iterator[str]:
    """Yield what is wrong with a row's place."""
    if row.position != expected:
        yield f"row {expected} to {row.position - 1}: missing"
    if row.link != link_entry(before, row.position, row.entry):
        yield f"row {row.position}: edited, or what came before it was"


def _replay(entry: Entry, accounts: Accounts, bodies: Bodies) -> Iterator[str]:
    """Book an entry; yield what no ledger would have booked."""
    client, model = ("client", entry.client), ("model", entry.model)
    if entry.kind == "grant":
        allowed, spent = accounts.get(client, (0, 0))
        accounts[client] = ((allowed or 0) + entry.micro, spent)
    elif entry.kind == "limit":
        accounts[model] = (entry.micro, accounts.get(model, (None, 0))[1])
    elif entry.kind == "answer":
        if entry.request not in bodies:
            yield f"an answer to {entry.request!r}, which was never charged"
    else:
        body = entry.client, entry.model, entry.content
        if bodies.setdefault(entry.request, body) != body:
            yield f"request {entry.request!r} was charged with two bodies"
        for account, start in ((client, (0, 0)), (model, (None, 0))):
            allowed, spent = accounts.get(account, start)
            accounts[account] = allowed, spent + entry.micro
            if allowed is not None and spent + entry.micro > allowed:
                yield f"{account[0]} {account[1]!r} spent more than the {allowed} it had"


def _balances(db: sqlite3.Connection, accounts: Accounts) -> Iterator[str]:
    """Yield the accounts that are not what the log makes of them."""
    held: Accounts = {
        (scope, name): (allowed, spent)
        for scope, name, allowed, spent in db.execute("SELECT * FROM accounts")
    }
    for key in sorted(accounts.keys() | held.keys()):
        if accounts.get(key) != held.get(key):
            yield f"{key[0]} {key[1]!r}: holds {held.get(key)}, by the log {accounts.get(key)}"


def _answers(db: sqlite3.Connection, digests: dict[str, bytes]) -> Iterator[str]:
    """Yield the stored answers that are not those of the log."""
    seen = set()
    for request, answer in db.execute("SELECT request, answer FROM answers"):
        seen.add(request)
        if digests.get(request) != sha256(answer).digest():
            yield f"the answer to {request!r} is not the one that was given"
    for request in sorted(digests.keys() - seen):
        yield f"the answer to {request!r} is missing"
