"""The budget ledger: charge and answer are on the disk, together, before the answer leaves.

Answers protect the input of a query; each adds its epsilon (basic composition, Dwork and Roth,
2014, theorem 3.16) to what its client has spent. A message that was answered before gets the stored
answer, which costs nothing, so that neither a repeat nor an average over repeats gains anything.

Both are one transaction. After a crash either both are there, and a retry gets the same answer for
free, or neither is, and nobody has seen the answer. Charges are never refunded.

The log is append-only, and each row holds a digest of all rows before it. Whoever edits a row, or
takes one out, has to recompute every later link; an auditor who keeps the last link of an export
elsewhere finds even that.

A disk may return other bytes than were written. Each row of the log is therefore checked against
its link when it is read, and each account against a digest of its own; what fits neither is never
charged or told.
"""

import json
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from json.encoder import encode_basestring_ascii as quote
from pathlib import Path
from threading import Lock
from typing import Literal, NamedTuple, final

from fedcel.errors import LedgerError, SettingsError
from fedcel.extras import import_optional
from fedcel.files import write_whole
from fedcel.privacy.budget_units import ATTO, MAX_MICRO, to_atto_delta
from fedcel.privacy.ledger.address import LedgerAddress, parse_ledger_address
from fedcel.privacy.ledger.database import LedgerDatabase, Result
from fedcel.privacy.ledger.sqlite_database import SqliteDatabase

DIGEST_BYTES = 32
MAX_DELTA = ATTO // 100
"""Limit on the sum of a client's deltas, in attos: 1 %; with more, epsilon promises little."""
FIRST_LINK = bytes(32)

AccountKey = tuple[str, str]
"""Scope, `client` or `model`, and name."""
ChargeBody = tuple[str, str, bytes]
"""Client, model and message that a request pays for."""
MAX_ROWS = 256
"""Rows of one statement: databases have a limit on its parameters."""
ROWS_AT_ONCE = 10_000
"""Rows of the log in memory."""


class Charge(NamedTuple):
    """Price of one answer; `epsilon` in micro-epsilons, by `to_micro_epsilon`.

    `request` is unique over all clients. `message` is the 32-byte digest of the message and of all
    else that decides the answer.
    """

    request: str
    client: str
    model: str
    epsilon: int
    delta: float
    message: bytes


class Receipt(NamedTuple):
    """Answer that may be told: charged now if `is_fresh`, else stored before and free.

    `remaining` is the client's, in micro-epsilons.
    """

    answer: bytes
    is_fresh: bool
    remaining: int


class Refusal(NamedTuple):
    """Nothing was charged, nothing may be answered; `remaining` of the budget that was asked for.

    `remaining` is in micro-epsilons; None: no budget was asked, as there is nothing to pay for.
    `delta`: the chances that the loss is exceeded add up to more than 1 %. `replayed`: the request
    id was used for another message. `undefined`: the model has no finite answer.
    """

    reason: Literal["budget", "delta", "model-budget", "unknown-client", "replayed", "undefined"]
    remaining: int | None


class Balance(NamedTuple):
    """A client's micro-epsilons, and the deltas of its answers added up."""

    granted: int
    spent: int
    remaining: int
    delta: float


class BudgetAccount(NamedTuple):
    """Limit (None: no limit) and spending of a client or a model version, in micro-epsilons.

    `delta`: a client's deltas added up, in attos; 0 of a model version.
    """

    allowed: int | None
    spent: int
    delta: int = 0

    @property
    def remaining(self) -> int:
        """Micro-epsilons that may still be spent; below 0 where a limit was lowered."""
        return (MAX_MICRO if self.allowed is None else self.allowed) - self.spent

    @property
    def balance(self) -> Balance:
        """A client's account as it is told."""
        return Balance(self.allowed or 0, self.spent, self.remaining, self.delta / ATTO)


EMPTY = BudgetAccount(0, 0)
UNLIMITED = BudgetAccount(None, 0)


class LedgerSums(NamedTuple):
    """Totals of a ledger; micro-epsilons over all clients."""

    rows: int
    answers: int
    clients: int
    granted: int
    spent: int


class LogEntry(NamedTuple):
    """An event; fields that do not apply are empty.

    `content` is the digest of a charge's message, `answer` what was charged for.
    """

    kind: Literal["grant", "limit", "charge"]
    request: str = ""
    client: str = ""
    model: str = ""
    micro: int = 0
    delta: float = 0.0
    content: bytes = b""
    answer: bytes | None = None

    @property
    def body(self) -> ChargeBody:
        """Client, model and message of a charge."""
        return self.client, self.model, self.content


class LogRow(NamedTuple):
    """An entry at its place in the chain."""

    position: int
    entry: LogEntry
    link: bytes

    def to_json(self) -> str:
        """Return the row as a line of JSON, bytes in hexadecimal, its answer by the digest."""
        answer = self.entry.answer
        digest = None if answer is None else sha256(answer).digest()
        entry = {**self.entry._asdict(), "answer": digest}
        fields = {"position": self.position, **entry, "link": self.link}
        return json.dumps(fields, default=bytes.hex) + "\n"


TABLES = {
    "log": ("position", *LogEntry._fields, "link"),
    "accounts": ("scope", "name", *BudgetAccount._fields, "digest"),
}
"""Columns of each table."""


@final
@dataclass(frozen=True)
class Ledger:
    """The budgets of all clients in one database; threads take turns, processes open their own.

    Open it with `Ledger.open`, use it as a context manager or close it. Every method raises
    LedgerError where the database cannot be read or written, and ValueError on a name that it
    cannot keep. Budgets are micro-epsilons, from 0 to below 2^62, else ValueError.
    """

    address: LedgerAddress
    db: LedgerDatabase
    lock: Lock = field(default_factory=Lock)

    @staticmethod
    def open(address: str | LedgerAddress) -> "Ledger":
        """Open a ledger, and make it where there is none.

        Args:
            address: A file on a local disk, or `postgresql://USER@HOST/DATABASE`, which several
                hosts may share. The database is there already; the ledger makes its tables.

        Returns:
            The ledger, checked and writable.

        Raises:
            SettingsError: The address is no path and no such URL.
            MissingExtraError: The driver of PostgreSQL is missing.
            LedgerError: The file or database is damaged, of another program or format, cannot be
                reached or written, or would lose what it said is on the disk.
        """
        address = parse_ledger_address(address)
        if isinstance(address, Path):
            db: LedgerDatabase = SqliteDatabase(address)
        else:
            module = import_optional("fedcel.privacy.ledger.postgres_database")  # needs an extra
            db = module.PostgresDatabase(address)
        try:
            db.upgrade(complete_accounts)
        except BaseException:
            db.close()
            raise
        return Ledger(address, db)

    def __enter__(self) -> "Ledger":
        """Return the ledger."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the ledger."""
        self.close()

    def close(self) -> None:
        """Close the ledger; what was charged stays charged."""
        with self.lock:
            self.db.close()

    def charge(
        self, charges: Sequence[Charge], answers: Sequence[bytes]
    ) -> list[Receipt | Refusal]:
        """Book what can be paid, with its answers, in order, in one transaction; durable on return.

        An answer may leave only with the receipt that holds it; those of refused charges, and of
        charges whose message was answered before, are thrown away.

        Args:
            charges: Prices of the answers.
            answers: One a charge; stored for repeats of each that can be paid.

        Returns:
            For each charge a receipt, or the reason why nothing may be told.

        Raises:
            ValueError: A charge is malformed, or there is not one answer a charge; nothing of the
                group is booked.
            LedgerError: It cannot be written; nothing of the group is booked.
        """
        charges = [check_charge(charge) for charge in charges]
        if len(answers) != len(charges):
            raise ValueError(
                f"answers are {len(answers)}, must be {len(charges)}, one a charge; draw the others"
            )
        return self._write(lambda transaction: transaction.book(charges, answers))

    def grant(self, client: str, micro: int) -> None:
        """Add to a client's budget, and make the client known."""
        self._write(lambda transaction: transaction.grant(client, micro))

    def admit(self, client: str, micro: int) -> bool:
        """Grant an unknown client its first budget; return whether the client was unknown."""
        check_text("client", client)
        if self._read(lambda db: read_account(db, ("client", client))) is not None:
            return False  # the usual case takes no lock
        return self._write(lambda transaction: transaction.admit(client, micro))

    def limit(self, model: str, micro: int) -> None:
        """Set what all clients together may spend on a model version; 0 ends it."""
        check_text("model", model)
        entry = LogEntry("limit", model=model, micro=check_micro("budget", micro))
        self._write(lambda transaction: transaction.append(entry))

    def balance(self, client: str) -> Balance:
        """Read what a client was granted and has spent; all 0 for an unknown client."""
        check_text("client", client)
        return (self._read(lambda db: read_account(db, ("client", client))) or EMPTY).balance

    def clients(self) -> dict[str, Balance]:
        """Read the balance of every known client, by name."""
        return self._read(read_balances)

    def prices(self, client: str) -> dict[tuple[int, float], int]:
        """Count a client's answers at each price of (micro-epsilons, delta)."""
        check_text("client", client)
        condition = "WHERE log.kind = 'charge' AND log.client = ?"
        charges = self._read(lambda db: list(read_checked(db, condition, (client,))))
        return dict(Counter((row.entry.micro, row.entry.delta) for row in charges))

    def probe(self) -> None:
        """Find out whether something could be charged now: write to the disk, and change nothing.

        Raises:
            LedgerError: It is locked, read-only or out of reach, or the disk is full.
        """
        with self.lock:
            self.db.transact(lambda db: db.touch(), writing=True)

    def find_risk(self) -> str | None:
        """Find out whether charges may be forgotten that were told: an asynchronous standby.

        Returns:
            A sentence with the remedy, or None.
        """
        with self.lock:
            return self.db.find_risk()

    def rows(self) -> list[LogRow]:
        """Read the whole log, in order; LedgerError where a row is not what was written."""
        return self._read(lambda db: list(read_checked(db, "ORDER BY log.position")))

    def export(self, path: str | Path) -> None:
        """Write the log as JSON lines, whole or not at all; an older file is replaced."""
        path = Path(path)
        if isinstance(self.address, Path) and path.exists() and path.samefile(self.address):
            raise SettingsError(f"{path} is the ledger itself; name another file for its log")
        write_whole(path, "".join(row.to_json() for row in self.rows()))

    def verify(self) -> list[str]:
        """Recompute links and balances from the log, and compare.

        Returns:
            One sentence for each thing that is wrong, none for a sound ledger.
        """
        return self._read(audit_ledger)

    def copy_to(self, target: "Ledger") -> LedgerSums:
        """Copy the log, with its answers and links, to an empty ledger, all or nothing.

        Nobody writes to either while it runs. Afterwards this one still accepts charges: whoever
        goes on with both lets clients spend twice.

        Args:
            target: Another ledger, which holds nothing.

        Returns:
            Totals that both hold.

        Raises:
            SettingsError: The target is this ledger, or is not empty.
            LedgerError: This ledger is not sound, or the copy is not equal to it. The target stays
                empty.
        """
        if target.address == self.address:
            raise SettingsError(f"{target.address} is both ledgers; name another to copy to")
        return self._write(
            lambda reading: target._write(lambda writing: copy_rows(reading.db, writing.db))
        )

    def _write(self, work: Callable[["WriteTransaction"], Result]) -> Result:
        """Do the work while no other process writes."""

        def write(db: LedgerDatabase) -> Result:
            transaction = WriteTransaction(db)
            result = work(transaction)
            transaction.write()
            return result

        with self.lock:
            return self.db.transact(write, writing=True)

    def _read(self, work: Callable[[LedgerDatabase], Result]) -> Result:
        """Do the work on one moment of the ledger; it keeps nobody from writing."""
        with self.lock:
            return self.db.transact(work, writing=False)


class WriteTransaction:
    """The log's end and the accounts while the write lock is held.

    Many charges at once are read in three statements and written in two: each is a round trip to a
    server, and a chance for other threads to take the processor. `write` does the writing.
    """

    def __init__(self, db: LedgerDatabase) -> None:
        self.db = db
        self._position, self._link = 0, FIRST_LINK
        for row in read_checked(db, "ORDER BY log.position DESC LIMIT 1"):
            self._position, self._link = row.position, row.link
        self._rows: list[tuple[object, ...]] = []
        self._accounts: dict[AccountKey, BudgetAccount | None] = {}
        self._changed: dict[AccountKey, BudgetAccount] = {}

    def book(self, charges: Sequence[Charge], answers: Sequence[bytes]) -> list[Receipt | Refusal]:
        """Return for each charge the stored answer, or book it, or refuse it; in order."""
        replies: list[Receipt | Refusal] = []
        entries = [
            LogEntry("charge", *charge, answer)
            for charge, answer in zip(charges, answers, strict=True)
        ]
        for start in range(0, len(entries), MAX_ROWS):
            part = entries[start : start + MAX_ROWS]
            charged = read_charged(self.db, [entry.request for entry in part])
            stored = read_answers(self.db, [entry.body for entry in part])
            keys = {("client", entry.client) for entry in part}
            keys |= {("model", entry.model) for entry in part}
            self._accounts |= dict.fromkeys(keys) | read_accounts(self.db, sorted(keys))
            replies += [self._book_entry(entry, charged, stored) for entry in part]
            self.write()
        return replies

    def _book_entry(
        self, entry: LogEntry, charged: dict[str, ChargeBody], stored: dict[ChargeBody, bytes]
    ) -> Receipt | Refusal:
        """Book a charge; `charged` and `stored` are of its group, and follow."""
        client_account = self.account(("client", entry.client))
        remaining = (client_account or EMPTY).remaining
        body, answer = entry.body, entry.answer or b""
        if charged.get(entry.request, body) != body:
            return Refusal("replayed", remaining)
        if body in stored:
            return Receipt(stored[body], is_fresh=False, remaining=remaining)
        if client_account is None:
            return Refusal("unknown-client", 0)
        model_account = self.account(("model", entry.model)) or UNLIMITED
        if model_account.remaining < entry.micro:
            return Refusal("model-budget", model_account.remaining)
        if remaining < entry.micro:
            return Refusal("budget", remaining)
        if entry.delta and client_account.delta + to_atto_delta(entry.delta) > MAX_DELTA:
            return Refusal("delta", remaining)
        self.append(entry)
        charged[entry.request] = body
        stored[body] = answer
        return Receipt(answer, is_fresh=True, remaining=remaining - entry.micro)

    def grant(self, client: str, micro: int) -> None:
        """Add to a client's budget, and make the client known; ValueError below 0 or too much."""
        check_text("client", client)
        account = self.account(("client", client)) or EMPTY
        micro = check_micro("budget", micro)
        check_micro("budget", (account.allowed or 0) + micro)
        self.append(LogEntry("grant", client=client, micro=micro))

    def admit(self, client: str, micro: int) -> bool:
        """Grant an unknown client its first budget; return whether it was unknown."""
        if self.account(("client", client)) is not None:
            return False
        self.grant(client, micro)
        return True

    def append(self, entry: LogEntry) -> None:
        """Add an entry to the log; the accounts follow it."""
        self._position += 1
        self._link = link_entry(self._link, self._position, entry)
        self._rows.append((self._position, *entry, self._link))
        changed = apply_entry(entry, self.account)
        self._accounts |= changed
        self._changed |= changed

    def account(self, key: AccountKey) -> BudgetAccount | None:
        """Return an account, None for an unknown name."""
        if key not in self._accounts:
            self._accounts[key] = read_account(self.db, key)
        return self._accounts[key]

    def write(self) -> None:
        """Write what was appended, and the accounts that changed."""
        insert_rows(self.db, "log", self._rows)
        insert_rows(
            self.db,
            "accounts",
            [seal_account(*changed) for changed in self._changed.items()],
            "ON CONFLICT (scope, name) DO UPDATE SET allowed = excluded.allowed, "
            "spent = excluded.spent, delta = excluded.delta, digest = excluded.digest",
        )
        self._rows, self._changed = [], {}


def check_charge(charge: Charge) -> Charge:
    """Return a charge in plain numbers; ValueError where it could not be booked or told apart."""
    request, client, model, epsilon, delta, message = charge
    for name, text in (("request", request), ("client", client), ("model", model)):
        check_text(name, text)
    epsilon = check_micro("epsilon", epsilon, least=1)
    if isinstance(delta, str) or not 0 <= delta < 1:
        raise ValueError(f"delta is {delta!r}, must be a number in [0, 1)")
    if len(message) != DIGEST_BYTES:
        raise ValueError(f"message holds {len(message)} bytes, must be a digest of {DIGEST_BYTES}")
    # A database keeps no negative zero, so that its row would read as edited.
    return Charge(request, client, model, epsilon, float(delta) + 0.0, message)


def check_text(name: str, text: str) -> None:
    """Refuse a name that a database cannot keep: ValueError."""
    if not text:
        raise ValueError(f"{name} is {text!r}, must not be empty")
    if "\0" in text or (not text.isascii() and text != text.encode(errors="ignore").decode()):
        raise ValueError(f"{name} is {text!r}, must be text without NUL that UTF-8 can write")


def check_micro(name: str, number: int, least: int = 0) -> int:
    """Return an amount of any kind of whole number as Python's; ValueError on another."""
    try:
        micro = operator.index(number)
    except TypeError:
        raise ValueError(
            f"{name} is {number!r}, must be a whole number of micro-epsilons; see to_micro_epsilon"
        ) from None
    if not least <= micro < MAX_MICRO:
        raise ValueError(
            f"{name} is {micro} micro-epsilons, must be from {least} to {MAX_MICRO - 1}; see "
            "to_micro_epsilon"
        )
    return micro


def apply_entry(
    entry: LogEntry, read: Callable[[AccountKey], BudgetAccount | None]
) -> dict[AccountKey, BudgetAccount]:
    """Return the accounts that an entry changes, as they are after it."""
    client = "client", entry.client
    model = "model", entry.model
    if entry.kind == "grant":
        payer = read(client) or EMPTY
        return {client: payer._replace(allowed=(payer.allowed or 0) + entry.micro)}
    if entry.kind == "limit":
        return {model: BudgetAccount(entry.micro, (read(model) or UNLIMITED).spent)}
    if entry.kind == "charge":
        payer, version = read(client) or EMPTY, read(model) or UNLIMITED
        delta = payer.delta + to_atto_delta(entry.delta)
        return {
            client: BudgetAccount(payer.allowed, payer.spent + entry.micro, delta),
            model: BudgetAccount(version.allowed, version.spent + entry.micro),
        }
    return {}


def link_entry(previous_link: bytes, position: int, entry: LogEntry) -> bytes:
    """Return the SHA-256 of the link before and the entry; an answer counts by its digest."""
    kind, request, client, model, micro, delta, content, answer = entry
    end = "]" if answer is None else f', "{sha256(answer).hexdigest()}"]'
    text = (  # what json.dumps writes of the list, in a quarter of the time
        f"[{position}, {quote(kind)}, {quote(request)}, {quote(client)}, {quote(model)}, {micro}, "
        f'{float(delta)!r}, "{content.hex()}"{end}'
    )
    return sha256(previous_link + text.encode()).digest()


def is_linked(previous_link: bytes | None, row: LogRow) -> bool:
    """Whether a row, of whatever types, is the one that was written after the link before it."""
    position, entry, link = row
    if previous_link is None or (type(entry.micro), type(entry.delta)) != (int, float):
        return False
    try:
        return link == link_entry(previous_link, position, entry)
    except (TypeError, AttributeError):  # a column of another type than was written
        return False


def refuse_damaged(db: LedgerDatabase, part: str) -> LedgerError:
    """Return the error for a part of a ledger that is not what was written."""
    return LedgerError(
        f"ledger {db.address}: {part} is not what was written, so nothing is charged or told from "
        "it; `fedcel ledger verify` lists what is wrong; check the disk, and restore a backup"
    )


def read_log(db: LedgerDatabase) -> Iterator[LogRow]:
    """Yield all rows in order, unchecked, without having all of them in memory."""
    position = 0
    while rows := db.execute(
        f"SELECT {', '.join(TABLES['log'])} FROM log WHERE position > ? ORDER BY position LIMIT ?",
        (position, ROWS_AT_ONCE),
    ):
        for position, *entry, link in rows:
            yield LogRow(position, LogEntry(*entry), link)


def read_checked(
    db: LedgerDatabase,
    condition: str,
    parameters: Sequence[object] = (),
    *,
    begin: str = "",
    source: str = "log",
) -> Iterator[LogRow]:
    """Yield rows of the log, each checked by the link before it.

    The statement is `begin`, the selection from `source`, then `condition`. LedgerError at a row
    that is not what was written.
    """
    columns = ", ".join(f"log.{column}" for column in TABLES["log"])
    for position, *entry, link, previous_link in db.execute(
        f"{begin} SELECT {columns}, before.link FROM {source} "
        f"LEFT JOIN log AS before ON before.position = log.position - 1 {condition}",
        parameters,
    ):
        row = LogRow(position, LogEntry(*entry), link)
        if not is_linked(FIRST_LINK if position == 1 else previous_link, row):
            raise refuse_damaged(db, f"row {position} of the log")
        yield row


def read_charged(db: LedgerDatabase, requests: Sequence[str]) -> dict[str, ChargeBody]:
    """Return what each request was first charged for, of those that were."""
    charged: dict[str, ChargeBody] = {}
    marks = ", ".join("?" * len(requests))
    condition = f"WHERE log.kind = 'charge' AND log.request IN ({marks}) ORDER BY log.position"
    for row in read_checked(db, condition, requests):
        charged.setdefault(row.entry.request, row.entry.body)
    return charged


def read_answers(db: LedgerDatabase, bodies: Sequence[ChargeBody]) -> dict[ChargeBody, bytes]:
    """Return the stored answer to each message, of those that have one."""
    marks, parameters = mark_rows(bodies)
    answers: dict[ChargeBody, bytes] = {}
    for row in read_checked(
        db,
        "WHERE log.kind = 'charge' AND log.client = asked.client AND log.model = asked.model "
        "AND log.content = asked.content ORDER BY log.position",
        parameters,
        begin=f"WITH asked (client, model, content) AS (VALUES {marks})",
        source="asked CROSS JOIN log",
    ):
        if row.entry.answer is not None:  # a charge of an older version may have none
            answers.setdefault(row.entry.body, row.entry.answer)
    return answers


def insert_rows(
    db: LedgerDatabase, table: str, rows: Sequence[tuple[object, ...]], on_conflict: str = ""
) -> None:
    """Insert rows, many with each statement."""
    for start in range(0, len(rows), MAX_ROWS):
        marks, parameters = mark_rows(rows[start : start + MAX_ROWS])
        columns = ", ".join(TABLES[table])
        db.execute(f"INSERT INTO {table} ({columns}) VALUES {marks} {on_conflict}", parameters)


def mark_rows(rows: Sequence[tuple[object, ...]]) -> tuple[str, list[object]]:
    """Return the marks of parameters of rows, `(?, ?), (?, ?)`, and the parameters."""
    marks = ", ".join([f"({', '.join('?' * len(rows[0]))})"] * len(rows))
    return marks, [value for row in rows for value in row]


def seal_account(key: AccountKey, account: BudgetAccount) -> tuple[object, ...]:
    """Return an account's row, with a digest against damage; whoever edits it can make one, too."""
    row = (*key, *account)
    return (*row, sha256(ascii(row).encode()).digest()[:8])


def read_accounts(
    db: LedgerDatabase, keys: Sequence[AccountKey] = ()
) -> dict[AccountKey, BudgetAccount]:
    """Return the accounts of keys, by default all; LedgerError at one that was not written so."""
    columns = ", ".join(f"accounts.{column}" for column in TABLES["accounts"])
    statement, parameters = f"SELECT {columns} FROM accounts", list[object]()
    if keys:
        marks, parameters = mark_rows(keys)
        statement = (
            f"WITH asked (scope, name) AS (VALUES {marks}) SELECT {columns} FROM asked CROSS JOIN "
            "accounts WHERE accounts.scope = asked.scope AND accounts.name = asked.name"
        )
    accounts: dict[AccountKey, BudgetAccount] = {}
    for row in db.execute(statement, parameters):
        scope, name, *numbers, _ = row
        account = BudgetAccount(*numbers)
        if row != seal_account((scope, name), account):
            raise refuse_damaged(db, f"the account of {scope} {name!r}")
        accounts[scope, name] = account
    if len(accounts) < len(keys):
        read_accounts(db)  # none may be missing because its name was damaged
    return accounts


def read_account(db: LedgerDatabase, key: AccountKey) -> BudgetAccount | None:
    """Return an account as it is stored, None for an unknown name."""
    return read_accounts(db, [key]).get(key)


def read_balances(db: LedgerDatabase) -> dict[str, Balance]:
    """Return the balances of all known clients, by name in order."""
    accounts = sorted(read_accounts(db).items())
    return {name: account.balance for (scope, name), account in accounts if scope == "client"}


def complete_accounts(db: LedgerDatabase) -> None:
    """Give the accounts of the older format their deltas and digests.

    LedgerError where the ledger is not sound: a digest would say that it were.
    """
    db.expect_long_work()
    accounts: dict[AccountKey, BudgetAccount] = {}
    list(replay_log(db, accounts))
    for key, account in accounts.items():
        *_, delta, digest = seal_account(key, account)
        db.execute(
            "UPDATE accounts SET delta = ?, digest = ? WHERE scope = ? AND name = ?",
            (delta, digest, *key),
        )
    if problems := audit_ledger(db):
        raise LedgerError(
            f"ledger {db.address} is of an older format and was changed or damaged, so it stays as "
            "it is:\n" + "\n".join(problems)
        )


def copy_rows(source: LedgerDatabase, target: LedgerDatabase) -> LedgerSums:
    """Copy within a transaction of the target; any error leaves nothing of it."""
    for db in (source, target):
        db.expect_long_work()
    if any(read_sums(target)):
        raise SettingsError(
            f"{target.address} is not empty, must be a new ledger; name another file or database"
        )
    if problems := audit_ledger(source):
        raise LedgerError(
            f"{source.address} is not sound, so nothing was copied:\n" + "\n".join(problems)
        )
    for table, columns in TABLES.items():
        insert_rows(target, table, source.execute(f"SELECT {', '.join(columns)} FROM {table}"))
    copied, sums = read_sums(target), read_sums(source)
    if problems := audit_ledger(target):
        raise LedgerError(f"the copy in {target.address} is not sound:\n" + "\n".join(problems))
    if copied != sums or read_balances(target) != read_balances(source):
        raise LedgerError(f"{target.address} would hold {copied}, {source.address} holds {sums}")
    return sums


def read_sums(db: LedgerDatabase) -> LedgerSums:
    """Return the totals of a ledger."""
    ((rows, answers),) = db.execute("SELECT count(*), count(answer) FROM log")
    balances = read_balances(db).values()
    granted = sum(balance.granted for balance in balances)
    spent = sum(balance.spent for balance in balances)
    return LedgerSums(rows, answers, len(balances), granted, spent)


def audit_ledger(db: LedgerDatabase) -> list[str]:
    """Return one sentence for each thing that is wrong, recomputed from the log."""
    accounts: dict[AccountKey, BudgetAccount] = {}
    problems = [*db.check_integrity(), *replay_log(db, accounts)]
    problems += [
        f"row {position}: request {request!r} was charged with two bodies"
        for position, request in db.execute(
            "SELECT DISTINCT log.position, log.request FROM log JOIN log AS earlier "
            "ON earlier.request = log.request AND earlier.position < log.position "
            "WHERE log.kind = 'charge' AND earlier.kind = 'charge' AND (earlier.client <> "
            "log.client OR earlier.model <> log.model OR earlier.content <> log.content) "
            "ORDER BY log.position"
        )
    ]
    stored = {
        (scope, name): (tuple(numbers), digest)
        for scope, name, *numbers, digest in db.execute(
            f"SELECT {', '.join(TABLES['accounts'])} FROM accounts"
        )
    }
    for key in sorted(accounts.keys() | stored.keys(), key=repr):
        numbers, digest = stored.get(key, (None, None))
        by_log = accounts.get(key)
        if numbers != by_log:
            by_log_numbers = by_log and tuple(by_log)
            problems.append(f"{key[0]} {key[1]!r}: holds {numbers}, by the log {by_log_numbers}")
        elif by_log is not None and digest != seal_account(key, by_log)[-1]:
            problems.append(f"{key[0]} {key[1]!r}: its digest is not that of its numbers")
    return problems


def replay_log(db: LedgerDatabase, accounts: dict[AccountKey, BudgetAccount]) -> Iterator[str]:
    """Fill the accounts by the log; yield what is wrong with its rows."""
    previous_link = FIRST_LINK
    expected = 1
    for row in read_log(db):
        position, entry, link = row
        if position != expected:
            yield f"row {expected} to {position - 1}: missing"
        if not is_linked(previous_link, row):
            yield f"row {position}: edited or damaged, or what came before it was"
        with suppress(TypeError, ValueError):  # of a row without its types, which was just told
            changed = apply_entry(entry, accounts.get)
            accounts |= changed
            if not changed:
                yield f"row {position}: its kind is {entry.kind!r}, as before version 0.2.0"
            for (scope, name), (allowed, spent, _) in changed.items():
                if entry.kind == "charge" and allowed is not None and spent > allowed:
                    yield f"row {position}: {scope} {name!r} spent more than the {allowed} it had"
        previous_link = link
        expected = position + 1
