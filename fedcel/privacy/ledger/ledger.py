"""The budget ledger: charge and answer are on the disk, together, before the answer leaves.

Answers protect the input of a query; each adds its epsilon (basic composition, Dwork and Roth,
2014, theorem 3.16) to what its client has spent. A message that was answered before gets the stored
answer, which costs nothing, so that neither a repeat nor an average over repeats gains anything.

Both are one transaction. After a crash either both are there, and a retry gets the same answer for
free, or neither is, and nobody has seen the answer. Charges are never refunded. Older versions
wrote the answer after its charge: where it was lost in between, a retry is charged again, as nobody
knows whether it was seen.

The log is append-only, and each row holds a digest of all rows before it. Whoever edits a row, or
takes one out, has to compute every later link anew; who keeps the last link of an export elsewhere
finds even that.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from json.encoder import encode_basestring_ascii as quote
from pathlib import Path
from threading import Lock
from typing import Literal, NamedTuple, TypeVar, cast, final

from fedcel.errors import LedgerError, SettingsError
from fedcel.extras import import_optional
from fedcel.files import write_whole
from fedcel.privacy.ledger.address import LedgerAddress, parse_ledger_address
from fedcel.privacy.ledger.database import LedgerDatabase
from fedcel.privacy.ledger.sqlite_database import SqliteDatabase

Result = TypeVar("Result")
Row = TypeVar("Row", bound=tuple[object, ...])

MICRO = 1_000_000
"""Micro-epsilons in one epsilon."""
MAX_MICRO = 2**62  # far from the largest integer of a database, also after an addition
DIGEST_BYTES = 32
LOG_COLUMNS = (
    "position",
    "kind",
    "request",
    "client",
    "model",
    "micro",
    "delta",
    "content",
    "answer",
    "link",
)
COPIED_TABLES = {
    "log": LOG_COLUMNS,
    "answers": ("request", "answer"),
    "accounts": ("scope", "name", "allowed", "spent"),
}
MAX_DELTA = 0.01
"""The largest delta of all answers of a client together; with more, epsilon promises little."""
FIRST_LINK = bytes(32)

AccountKey = tuple[str, str]
"""Scope, `client` or `model`, and name."""
ChargeBody = tuple[str, str, bytes]
"""What a request pays for: client, model, message."""
MAX_ROWS = 256
"""Of one statement: databases have a limit on its parameters."""
ROWS_AT_ONCE = 10_000
"""Of the log in memory."""


class Charge(NamedTuple):
    """What one answer costs; `epsilon` in micro-epsilons, rounded up by the caller.

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
    """What may be told: the answer that was charged now, or the stored one, which costs nothing.

    `remaining` is the client's, in micro-epsilons.
    """

    answer: bytes
    is_fresh: bool
    """Whether it was charged now."""
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
    """What a client or a model version may spend (None: no limit) and has spent, in micro."""

    allowed: int | None
    spent: int

    @property
    def remaining(self) -> int:
        """Return what may still be spent; below 0 where a limit was lowered."""
        return (self.allowed or 0) - self.spent


class LedgerSums(NamedTuple):
    """What a ledger holds in all; micro-epsilons over all clients."""

    rows: int
    answers: int
    clients: int
    granted: int
    spent: int


EMPTY = BudgetAccount(0, 0)
UNLIMITED = BudgetAccount(None, 0)


class LogEntry(NamedTuple):
    """What happened; fields that do not apply are empty.

    `content` is the digest of a charge's message. `answer` is what was charged for; older versions
    wrote an entry of its own for it, with its digest as content.
    """

    kind: Literal["grant", "limit", "charge", "answer"]
    request: str = ""
    client: str = ""
    model: str = ""
    micro: int = 0
    delta: float = 0.0
    content: bytes = b""
    answer: bytes | None = None


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


@final
@dataclass(frozen=True)
class Ledger:
    """The budgets of all clients in one database; threads take turns, processes open their own.

    Open it with `Ledger.open`, use it as a context manager or close it. Every method raises
    LedgerError where the database cannot be read or written.
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
        return Ledger(address, connect_database(address))

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
            charges: What the answers cost.
            answers: What is told, and stored for repeats, of each that can be paid.

        Returns:
            For each charge a receipt, or the reason why nothing may be told.

        Raises:
            ValueError: A charge is malformed, or there is not one answer a charge; nothing of the
                group is booked.
            LedgerError: It cannot be written; nothing of the group is booked.
        """
        for charge in charges:
            check_charge(charge)
        if len(answers) != len(charges):
            raise ValueError(
                f"answers are {len(answers)}, must be {len(charges)}, one a charge; draw the others"
            )
        return self._write(lambda transaction: transaction.book(charges, answers))

    def grant(self, client: str, micro: int) -> None:
        """Add to a client's budget, and make the client known.

        Args:
            client: Its name.
            micro: Micro-epsilons, 0 or more.

        Raises:
            ValueError: Less than 0, or more than can be counted.
        """
        self._write(lambda transaction: transaction.grant(client, micro))

    def admit(self, client: str, micro: int) -> bool:
        """Grant an unknown client its first budget.

        Args:
            client: Its name.
            micro: Micro-epsilons, 0 or more.

        Returns:
            Whether the client was unknown; nothing is granted to a known one.

        Raises:
            ValueError: As `grant`.
        """
        if self._read(lambda db: read_account(db, ("client", client))) is not None:
            return False  # the usual case takes no lock
        return self._write(lambda transaction: transaction.admit(client, micro))

    def limit(self, model: str, micro: int) -> None:
        """Set what all clients together may spend on a model version.

        Args:
            model: The version.
            micro: Micro-epsilons; 0 ends it.

        Raises:
            ValueError: Less than 0, or more than can be counted.
        """
        check_budget(micro)
        self._write(lambda transaction: transaction.append(LogEntry("limit", "", "", model, micro)))

    def balance(self, client: str) -> Balance:
        """Read what a client was granted and has spent.

        Args:
            client: Its name.

        Returns:
            Its balance; all 0 for a client that is not known.
        """
        return self._read(lambda db: read_balance(db, client))

    def clients(self) -> dict[str, Balance]:
        """Read the balance of every known client.

        Returns:
            The balances by name.
        """
        return self._read(read_balances)

    def prices(self, client: str) -> dict[tuple[int, float], int]:
        """Count a client's answers by what they cost.

        Args:
            client: Its name.

        Returns:
            How many answers cost each (micro-epsilons, delta).
        """
        return self._read(lambda db: count_prices(db, client))

    def probe(self) -> None:
        """Find out whether something could be charged now.

        Raises:
            LedgerError: It is locked, read-only or out of reach.
        """
        self._write(lambda _: None)

    def rows(self) -> list[LogRow]:
        """Read the whole log.

        Returns:
            Its rows, in order.
        """
        return self._read(lambda db: list(read_log(db)))

    def export(self, path: str | Path) -> None:
        """Write the log as JSON lines, whole or not at all.

        Args:
            path: File to write; an older one is replaced.
        """
        write_whole(Path(path), "".join(row.to_json() for row in self.rows()))

    def verify(self) -> list[str]:
        """Compute links, balances and answers anew from the log, and compare.

        Returns:
            One sentence for each thing that is wrong, none for a sound ledger.
        """
        return self._read(audit_ledger)

    def copy_to(self, target: "Ledger") -> "LedgerSums":
        """Copy the log, its links and the stored answers to an empty ledger, all or nothing.

        Nobody writes to either while it runs. Afterwards this one still accepts charges: whoever
        goes on with both lets clients spend twice.

        Args:
            target: Another ledger, which holds nothing.

        Returns:
            What both hold.

        Raises:
            SettingsError: The target is this ledger, or is not empty.
            LedgerError: This ledger is not sound, or the copy is not equal to it. The target stays
                empty.
        """
        if target.address == self.address:
            raise SettingsError(f"{target.address} is both ledgers; name another to copy to")
        return self._write(
            lambda reading: target._write(
                lambda writing: copy_rows(reading.db, writing.db, self.address, target.address)
            )
        )

    def _write(self, work: Callable[["WriteTransaction"], Result]) -> Result:
        """Do the work while this process alone writes."""

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


def connect_database(address: LedgerAddress) -> LedgerDatabase:
    """Return a connection to a ledger, which is made where there is none."""
    if isinstance(address, Path):
        return SqliteDatabase(address)
    module = import_optional("fedcel.privacy.ledger.postgres_database")  # needs an extra
    return cast(LedgerDatabase, module.PostgresDatabase(address))


class WriteTransaction:
    """The log's end and the accounts while the write lock is held.

    Many charges at once are read in three statements and written in two: each is a round trip to a
    server, and a chance for other threads to take the processor. `write` does the writing.
    """

    def __init__(self, db: LedgerDatabase) -> None:
        last_row: tuple[int, bytes] | None = db.execute(
            "SELECT position, link FROM log ORDER BY position DESC LIMIT 1"
        ).fetchone()
        self.db = db
        self._position, self._link = last_row or (0, FIRST_LINK)
        self._rows: list[tuple[object, ...]] = []
        self._accounts: dict[AccountKey, BudgetAccount | None] = {}
        self._changed: dict[AccountKey, BudgetAccount] = {}
        self._deltas: dict[str, float] = {}

    def book(self, charges: Sequence[Charge], answers: Sequence[bytes]) -> list[Receipt | Refusal]:
        """Return for each charge the stored answer, or book it, or say why not; in order."""
        charged = read_charged(self.db, [charge.request for charge in charges])
        stored = read_answers(self.db, [charge_body(charge) for charge in charges])
        self._read_accounts(
            {("client", charge.client) for charge in charges}
            | {("model", charge.model) for charge in charges}
        )
        return [
            self._book_one(charge, answer, charged, stored)
            for charge, answer in zip(charges, answers, strict=True)
        ]

    def _book_one(
        self,
        charge: Charge,
        answer: bytes,
        charged: dict[str, ChargeBody],
        stored: dict[ChargeBody, bytes],
    ) -> Receipt | Refusal:
        """Book a charge; `charged` and `stored` are of its group, and follow."""
        request, client, model, epsilon, delta, message = charge
        client_account = self.account(("client", client))
        remaining = (client_account or EMPTY).remaining
        body = charge_body(charge)
        if charged.get(request, body) != body:
            return Refusal("replayed", remaining)
        stored_answer = stored.get(body)
        if stored_answer is not None:
            return Receipt(stored_answer, is_fresh=False, remaining=remaining)
        if client_account is None:
            return Refusal("unknown-client", 0)
        model_account = self.account(("model", model)) or UNLIMITED
        if model_account.allowed is not None and model_account.remaining < epsilon:
            return Refusal("model-budget", model_account.remaining)
        if remaining < epsilon:
            return Refusal("budget", remaining)
        if delta and self._spent_delta(client) + delta > MAX_DELTA:
            return Refusal("delta", remaining)
        self.append(LogEntry("charge", request, client, model, epsilon, delta, message, answer))
        charged[request] = body
        stored[body] = answer
        return Receipt(answer, is_fresh=True, remaining=remaining - epsilon)

    def grant(self, client: str, micro: int) -> None:
        """Add to a client's budget, and make the client known; ValueError below 0 or too much."""
        account = self.account(("client", client)) or EMPTY
        check_budget(micro)
        check_budget((account.allowed or 0) + micro)
        self.append(LogEntry("grant", client=client, micro=micro))

    def admit(self, client: str, micro: int) -> bool:
        """Grant an unknown client its first budget; say whether it was unknown."""
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
        if entry.client in self._deltas:
            self._deltas[entry.client] += entry.delta

    def account(self, key: AccountKey) -> BudgetAccount | None:
        """Return an account, None for an unknown name."""
        if key not in self._accounts:
            self._accounts[key] = read_account(self.db, key)
        return self._accounts[key]

    def write(self) -> None:
        """Write what was appended, and the accounts that changed."""
        insert_rows(self.db, "log", LOG_COLUMNS, self._rows)
        for part in split_parts([(*key, *account) for key, account in self._changed.items()]):
            self.db.execute(
                f"INSERT INTO accounts VALUES {mark_rows(part)} ON CONFLICT (scope, name) DO "
                "UPDATE SET allowed = excluded.allowed, spent = excluded.spent",
                flatten_rows(part),
            )

    def _read_accounts(self, keys: set[AccountKey]) -> None:
        """Read accounts that are about to be asked for."""
        for part in split_parts(sorted(keys)):
            self._accounts |= dict.fromkeys(part)
            for scope, name, allowed, spent in self.db.execute(
                f"WITH asked (scope, name) AS (VALUES {mark_rows(part)}) "
                "SELECT accounts.scope, accounts.name, allowed, spent FROM asked CROSS JOIN "
                "accounts WHERE accounts.scope = asked.scope AND accounts.name = asked.name",
                flatten_rows(part),
            ):
                self._accounts[scope, name] = BudgetAccount(allowed, spent)

    def _spent_delta(self, client: str) -> float:
        """Return the deltas of a client's charges: those written, and those of this transaction.

        Read before the first charge with a delta is appended, so that none counts twice.
        """
        if client not in self._deltas:
            self._deltas[client] = read_spent_delta(self.db, client)
        return self._deltas[client]


def check_charge(charge: Charge) -> None:
    """Refuse what could not be booked or told apart later: ValueError."""
    if not (charge.request and charge.client and charge.model):
        raise ValueError(f"request, client and model are {charge[:3]}, must not be empty")
    if not 0 < charge.epsilon < MAX_MICRO:
        raise ValueError(f"epsilon is {charge.epsilon} micro-epsilons, must be 1 or more")
    if not 0 <= charge.delta < 1:
        raise ValueError(f"delta is {charge.delta}, must be in [0, 1)")
    if len(charge.message) != DIGEST_BYTES:
        raise ValueError(
            f"message holds {len(charge.message)} bytes, must be a digest of {DIGEST_BYTES}"
        )


def check_budget(micro: int) -> None:
    """Refuse what no budget can be: ValueError."""
    if not 0 <= micro < MAX_MICRO:
        raise ValueError(f"budget is {micro} micro-epsilons, must be from 0 to {MAX_MICRO - 1}")


def apply_entry(
    entry: LogEntry, read: Callable[[AccountKey], BudgetAccount | None]
) -> dict[AccountKey, BudgetAccount]:
    """Return the accounts that an entry changes, as they are after it."""
    client = "client", entry.client
    model = "model", entry.model
    if entry.kind == "grant":
        allowed, spent = read(client) or EMPTY
        return {client: BudgetAccount((allowed or 0) + entry.micro, spent)}
    if entry.kind == "limit":
        return {model: BudgetAccount(entry.micro, (read(model) or UNLIMITED).spent)}
    if entry.kind == "charge":
        before = {client: read(client) or EMPTY, model: read(model) or UNLIMITED}
        return {key: BudgetAccount(a.allowed, a.spent + entry.micro) for key, a in before.items()}
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


def read_log(db: LedgerDatabase) -> Iterator[LogRow]:
    """Yield all rows in order, without having all of them in memory."""
    position = 0
    while rows := db.execute(
        f"SELECT {', '.join(LOG_COLUMNS)} FROM log WHERE position > ? ORDER BY position LIMIT ?",
        (position, ROWS_AT_ONCE),
    ).fetchall():
        for position, *entry, link in rows:
            yield LogRow(position, LogEntry(*entry), link)


def charge_body(charge: Charge) -> ChargeBody:
    """Return what a charge pays for."""
    return charge.client, charge.model, charge.message


def read_charged(db: LedgerDatabase, requests: Sequence[str]) -> dict[str, ChargeBody]:
    """Return what each request was first charged for, of those that were."""
    charged: dict[str, ChargeBody] = {}
    for part in split_parts([(request,) for request in requests]):
        for request, *body in db.execute(
            "SELECT request, client, model, content FROM log WHERE kind = 'charge' AND request IN "
            f"({', '.join('?' * len(part))}) ORDER BY position",
            flatten_rows(part),
        ):
            charged.setdefault(request, tuple(body))
    return charged


def read_answers(db: LedgerDatabase, bodies: Sequence[ChargeBody]) -> dict[ChargeBody, bytes]:
    """Return the stored answer to each message, of those that have one."""
    answers: dict[ChargeBody, bytes] = {}
    for part in split_parts(bodies):
        for client, model, content, answer in db.execute(
            f"WITH asked (client, model, content) AS (VALUES {mark_rows(part)}) "
            "SELECT log.client, log.model, log.content, coalesce(log.answer, answers.answer) "
            "FROM asked CROSS JOIN log LEFT JOIN answers ON answers.request = log.request "
            "WHERE log.kind = 'charge' AND log.client = asked.client AND log.model = asked.model "
            "AND log.content = asked.content ORDER BY log.position",
            flatten_rows(part),
        ):
            if answer is not None:  # a charge of an older version may have none
                answers.setdefault((client, model, content), answer)
    return answers


def insert_rows(
    db: LedgerDatabase, table: str, columns: Sequence[str], rows: Sequence[tuple[object, ...]]
) -> None:
    """Insert rows, many with each statement."""
    for part in split_parts(rows):
        db.execute(
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES {mark_rows(part)}",
            flatten_rows(part),
        )


def split_parts(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Yield rows in parts that one statement can have."""
    for start in range(0, len(rows), MAX_ROWS):
        yield rows[start : start + MAX_ROWS]


def mark_rows(rows: Sequence[tuple[object, ...]]) -> str:
    """Return the marks of parameters of rows, `(?, ?), (?, ?)`."""
    return ", ".join([f"({', '.join('?' * len(rows[0]))})"] * len(rows))


def flatten_rows(rows: Sequence[tuple[object, ...]]) -> list[object]:
    """Return the parameters of rows, one after the other."""
    return [value for row in rows for value in row]


def read_account(db: LedgerDatabase, key: AccountKey) -> BudgetAccount | None:
    """Return an account as it is stored, None for an unknown name."""
    row = db.execute(
        "SELECT allowed, spent FROM accounts WHERE scope = ? AND name = ?", key
    ).fetchone()
    return row and BudgetAccount(*row)


def read_balance(db: LedgerDatabase, client: str) -> Balance:
    """Return a client's balance as it is stored."""
    account = read_account(db, ("client", client)) or EMPTY
    delta = read_spent_delta(db, client)
    return Balance(account.allowed or 0, account.spent, account.remaining, delta)


def read_balances(db: LedgerDatabase) -> dict[str, Balance]:
    """Return the balances of all known clients, by name in order."""
    names = db.execute("SELECT name FROM accounts WHERE scope = 'client'").fetchall()
    return {name: read_balance(db, name) for (name,) in sorted(names)}


def count_prices(db: LedgerDatabase, client: str) -> dict[tuple[int, float], int]:
    """Return how many of a client's answers cost each (micro-epsilons, delta)."""
    counts = db.execute(
        "SELECT micro, delta, count(*) FROM log WHERE kind = 'charge' AND client = ? "
        "GROUP BY micro, delta",
        (client,),
    )
    return {(micro, delta): count for micro, delta, count in counts}


def read_spent_delta(db: LedgerDatabase, client: str) -> float:
    """Return the deltas of a client's charges added up."""
    row: tuple[float] = db.execute(
        "SELECT coalesce(sum(delta), 0.0) FROM log "
        "WHERE kind = 'charge' AND delta > 0 AND client = ?",
        (client,),
    ).fetchone()
    return row[0]


def copy_rows(
    source: LedgerDatabase, target: LedgerDatabase, name: object, target_name: object
) -> LedgerSums:
    """Copy within a transaction of the target; any error leaves nothing of it."""
    for db in (source, target):
        db.expect_long_work()
    if any(read_sums(target)):
        raise SettingsError(
            f"{target_name} is not empty, must be a new ledger; name another file or database"
        )
    if problems := audit_ledger(source):
        raise LedgerError(f"{name} is not sound, so nothing was copied:\n" + "\n".join(problems))
    for table, columns in COPIED_TABLES.items():
        rows = source.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()
        marks = ", ".join("?" * len(columns))
        target.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)
    sums = read_sums(target)
    if problems := audit_ledger(target):
        raise LedgerError(f"the copy in {target_name} is not sound:\n" + "\n".join(problems))
    if sums != read_sums(source) or read_balances(target) != read_balances(source):
        raise LedgerError(f"{target_name} would hold {sums}, {name} holds {read_sums(source)}")
    return sums


def read_sums(db: LedgerDatabase) -> LedgerSums:
    """Return what a ledger holds in all."""
    rows, answers, older_answers = db.execute(
        "SELECT count(*), count(answer), (SELECT count(*) FROM answers) FROM log"
    ).fetchone()
    balances = read_balances(db).values()
    granted = sum(balance.granted for balance in balances)
    spent = sum(balance.spent for balance in balances)
    return LedgerSums(rows, answers + older_answers, len(balances), granted, spent)


def audit_ledger(db: LedgerDatabase) -> list[str]:
    """Return one sentence for each thing that is wrong, computed anew from the log."""
    problems = db.check_integrity()
    accounts: dict[AccountKey, BudgetAccount] = {}
    answer_digests: dict[str, bytes] = {}
    previous_link = FIRST_LINK
    expected = 1
    for position, entry, link in read_log(db):
        if position != expected:
            problems.append(f"row {expected} to {position - 1}: missing")
        if link != link_entry(previous_link, position, entry):
            problems.append(f"row {position}: edited, or what came before it was")
        problems += [f"row {position}: {text}" for text in _replay(entry, accounts)]
        if entry.kind == "answer":
            answer_digests[entry.request] = entry.content
        previous_link = link
        expected = position + 1
    return [
        *problems,
        *_audit_requests(db),
        *_audit_accounts(db, accounts),
        *_audit_answers(db, answer_digests),
    ]


def _replay(entry: LogEntry, accounts: dict[AccountKey, BudgetAccount]) -> Iterator[str]:
    """Book an entry; yield what no ledger would have booked."""
    changed = apply_entry(entry, accounts.get)
    accounts |= changed
    if entry.kind == "charge":
        for (scope, name), (allowed, spent) in changed.items():
            if allowed is not None and spent > allowed:
                yield f"{scope} {name!r} spent more than the {allowed} it had"


def _audit_requests(db: LedgerDatabase) -> Iterator[str]:
    """Yield what is wrong between entries of one request; those that were charged once are not."""
    first: dict[str, ChargeBody] = {}
    for position, request, *body in db.execute(
        "SELECT position, request, client, model, content FROM log WHERE kind = 'charge' AND "
        "request IN (SELECT request FROM log WHERE kind = 'charge' GROUP BY request "
        "HAVING count(*) > 1) ORDER BY position"
    ):
        if first.setdefault(request, tuple(body)) != tuple(body):
            yield f"row {position}: request {request!r} was charged with two bodies"
    for position, request in db.execute(
        "SELECT position, request FROM log WHERE kind = 'answer' AND NOT EXISTS (SELECT 1 FROM log "
        "AS charges WHERE charges.kind = 'charge' AND charges.request = log.request "
        "AND charges.position < log.position) ORDER BY position"
    ):
        yield f"row {position}: an answer to {request!r}, which was never charged"


def _audit_accounts(db: LedgerDatabase, accounts: dict[AccountKey, BudgetAccount]) -> Iterator[str]:
    """Yield the accounts that are not what the log makes of them."""
    by_log = {key: tuple(account) for key, account in accounts.items()}
    stored = {
        (scope, name): (allowed, spent)
        for scope, name, allowed, spent in db.execute("SELECT * FROM accounts")
    }
    for key in sorted(by_log.keys() | stored.keys()):
        if by_log.get(key) != stored.get(key):
            yield f"{key[0]} {key[1]!r}: holds {stored.get(key)}, by the log {by_log.get(key)}"


def _audit_answers(db: LedgerDatabase, digests: dict[str, bytes]) -> Iterator[str]:
    """Yield the answers stored beside the log that are not those of its entries."""
    requests = set()
    for request, answer in db.execute("SELECT request, answer FROM answers"):
        requests.add(request)
        if digests.get(request) != sha256(answer).digest():
            yield f"the answer to {request!r} is not the one that was given"
    for request in sorted(digests.keys() - requests):
        yield f"the answer to {request!r} is missing"
