"""What one writing transaction of the ledger reads once and writes at its end."""

import sqlite3

from fedcel.privacy.ledger.log import COLUMNS, START, Entry, link_entry

LARGEST = 2**62  # far from the largest integer of SQLite, also after an addition
Account = tuple[int | None, int]
"""What is allowed (None: without limit) and what is spent, in micro-epsilons."""
Name = tuple[str, str]
"""Scope, `client` or `model`, and name."""


class Books:
    """The log's end and the accounts, within a transaction that holds the write lock.

    Of many charges at once each account is read and written once; `close` does the writing.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        last: tuple[int, bytes] | None = db.execute(
            "SELECT position, link FROM log ORDER BY position DESC LIMIT 1"
        ).fetchone()
        self.db = db
        self._position, self._link = last or (0, START)
        self._accounts: dict[Name, Account | None] = {}
        self._changed: dict[Name, Account] = {}
        self._deltas: dict[str, float] = {}

    def delta(self, client: str) -> float:
        """Return the deltas of a client's answers added up."""
        if client not in self._deltas:
            self._deltas[client] = spent_delta(self.db, client)
        return self._deltas[client]

    def append(self, entry: Entry) -> None:
        """Add an entry to the log."""
        self._position += 1
        self._link = link_entry(self._link, self._position, entry)
        values = (self._position, *entry, self._link)
        self.db.execute(f"INSERT INTO log ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
        if entry.client in self._deltas:
            self._deltas[entry.client] += entry.delta

    def store(self, request: str, answer: bytes) -> bool:
        """Keep the first answer to a charged request; say whether this is it."""
        kept = self.db.execute(
            "INSERT OR IGNORE INTO answers SELECT ?, ? WHERE EXISTS "
            "(SELECT 1 FROM log WHERE kind = 'charge' AND request = ?)",
            (request, answer, request),
        )
        return kept.rowcount > 0

    def account(self, scope: str, name: str) -> Account | None:
        """Return an account, None for an unknown name."""
        key = scope, name
        if key not in self._accounts:
            self._accounts[key] = read_account(self.db, scope, name)
        return self._accounts[key]

    def keep(self, scope: str, name: str, now: Account) -> None:
        """Set an account."""
        self._accounts[scope, name] = self._changed[scope, name] = now

    def grant(self, client: str, micro: int) -> None:
        """Add to a client's budget, and make the client known; ValueError below 0 or too much."""
        allowed, spent = self.account("client", client) or (0, 0)
        check_budget(micro)
        check_budget((allowed or 0) + micro)
        self.append(Entry("grant", client=client, micro=micro))
        self.keep("client", client, ((allowed or 0) + micro, spent))

    def close(self) -> None:
        """Write the accounts that changed."""
        rows = [(*key, *now) for key, now in self._changed.items()]
        self.db.executemany("INSERT OR REPLACE INTO accounts VALUES (?, ?, ?, ?)", rows)


def read_account(db: sqlite3.Connection, scope: str, name: str) -> Account | None:
    """Return an account as it is in the file, None for an unknown name."""
    found: Account | None = db.execute(
        "SELECT allowed, spent FROM accounts WHERE scope = ? AND name = ?", (scope, name)
    ).fetchone()
    return found


def spent_delta(db: sqlite3.Connection, client: str) -> float:
    """Return the deltas of a client's charges added up."""
    found: tuple[float] = db.execute(
        "SELECT total(delta) FROM log WHERE kind = 'charge' AND delta > 0 AND client = ?", (client,)
    ).fetchone()
    return found[0]


def check_budget(micro: int) -> None:
    """Refuse what no budget can be: ValueError."""
    if not 0 <= micro < LARGEST:
        raise ValueError(f"budget is {micro} micro-epsilons, must be from 0 to {LARGEST - 1}")
