"""The budget ledger: charged before noise is drawn, never refunded, on the disk before it returns.

Answers protect the input of a query; each adds its epsilon (basic composition, Dwork and Roth,
2014, theorem 3.16) to what its client has spent. A message that was answered before gets the stored
answer, which costs nothing, so that neither a repeat nor an average over repeats gains anything.

A crash between `charge` and `settle` leaves a charge without an answer. Nobody knows whether that
answer was seen, and a second draw under one charge could cost twice what was booked: a retry is
therefore charged again. The same holds for a retry while the first is still at work.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Literal, NamedTuple, final

from fedcel.files import write_whole
from fedcel.privacy.ledger.audit import audit_ledger
from fedcel.privacy.ledger.books import (
    LARGEST,
    Account,
    Books,
    check_budget,
    read_account,
    spent_delta,
)
from fedcel.privacy.ledger.log import Entry, Row, read_log
from fedcel.privacy.ledger.schema import connect_ledger, explain_errors

__all__ = ["MICRO", "Balance", "Charge", "Ledger", "Receipt", "Refusal", "Row"]

MICRO = 1_000_000
"""Micro-epsilons in one epsilon."""
DIGEST = 32
MOST_DELTA = 0.01
"""Of all answers of a client together; with more, epsilon promises little."""


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
    """`answer` is set where the same was answered before; then nothing was charged.

    Else `fresh`: charged now, to be answered and settled. `left` is the client's, in
    micro-epsilons.
    """

    request: str
    answer: bytes | None
    fresh: bool
    left: int


class Refusal(NamedTuple):
    """Nothing was charged, nothing may be answered; `left` of the budget that is too small.

    `delta`: the chances that the loss is exceeded add up to more than 1 %. `replayed`: the request
    id was used for another message. `undefined`: the model has no finite answer.
    """

    request: str
    reason: Literal["budget", "delta", "model-budget", "unknown-client", "replayed", "undefined"]
    left: int


class Balance(NamedTuple):
    """A client's micro-epsilons, and the deltas of its answers added up."""

    granted: int
    spent: int
    left: int
    delta: float


@final
@dataclass(frozen=True)
class Ledger:
    """One connection to a ledger file; threads take turns, processes open their own."""

    path: Path
    db: sqlite3.Connection
    lock: Lock = field(default_factory=Lock)

    @staticmethod
    def open(path: Path) -> "Ledger":
        """Return the ledger at `path`, made where there is none; LedgerError says why not."""
        return Ledger(path, connect_ledger(path))

    def __enter__(self) -> "Ledger":
        """Return the ledger."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self.close()

    def close(self) -> None:
        """Close the file; what was charged stays charged."""
        with self.lock:
            self.db.close()

    def charge(self, charges: Sequence[Charge]) -> list[Receipt | Refusal]:
        """Book what can be booked, in order, in one transaction; durable on return.

        ValueError on a charge that is malformed, LedgerError where the file cannot be written; then
        nothing of the group is booked.
        """
        for charge in charges:
            check_charge(charge)
        with self._writing() as books:
            return [_book(books, charge) for charge in charges]

    def settle(self, answers: Sequence[tuple[str, bytes]]) -> None:
        """Store the answers to charged requests, in one transaction.

        Of two answers to one request, each charged, the first is kept for repeats. A crash of the
        process loses none; one of the whole machine may lose the last ones, and a repeat of those
        is charged again, as after a crash before `settle`. ValueError on a request that was never
        charged.
        """
        with self._writing(durable=False) as books:
            for request, answer in answers:
                if books.store(request, answer):
                    books.append(Entry("answer", request, content=sha256(answer).digest()))
                elif _body(books.db, request) is None:
                    raise ValueError(f"request {request!r} was never charged; charge it first")

    def grant(self, client: str, micro: int) -> None:
        """Add to a client's budget, and make the client known; ValueError below 0 or too much."""
        with self._writing() as books:
            books.grant(client, micro)

    def admit(self, client: str, micro: int) -> bool:
        """Grant an unknown client its budget and return True; ValueError as `grant`."""
        if self.knows(client):  # the usual case takes no lock
            return False
        with self._writing() as books:
            if books.account("client", client) is not None:
                return False
            books.grant(client, micro)
            return True

    def knows(self, client: str) -> bool:
        """Say whether a client was ever granted anything."""
        with self._reading() as db:
            return read_account(db, "client", client) is not None

    def limit(self, model: str, micro: int) -> None:
        """Set what all clients together may spend on a model version; ValueError below 0."""
        with self._writing() as books:
            _, spent = books.account("model", model) or (None, 0)
            check_budget(micro)
            books.append(Entry("limit", model=model, micro=micro))
            books.keep("model", model, (micro, spent))

    def balance(self, client: str) -> Balance:
        """Return what a client was granted and has spent; all 0 for one that is not known."""
        with self._reading() as db:
            return _balance(db, client)

    def clients(self) -> dict[str, Balance]:
        """Return the balance of every known client, by name."""
        with self._reading() as db:
            names = db.execute("SELECT name FROM accounts WHERE scope = 'client'").fetchall()
            return {name: _balance(db, name) for (name,) in names}

    def prices(self, client: str) -> dict[tuple[int, float], int]:
        """Return how many answers of a client cost each (micro-epsilons, delta)."""
        with self._reading() as db:
            found = db.execute(
                "SELECT micro, delta, count(*) FROM log WHERE kind = 'charge' AND client = ? "
                "GROUP BY micro, delta",
                (client,),
            )
            return {(micro, delta): count for micro, delta, count in found}

    def probe(self) -> None:
        """LedgerError where nothing could be charged now: the file is locked or read-only."""
        with self._transaction("BEGIN IMMEDIATE"):
            pass

    def rows(self) -> list[Row]:
        """Return the whole log, in order."""
        with self._reading() as db:
            return list(read_log(db))

    def export(self, path: Path) -> None:
        """Write the log as JSON lines, whole or not at all."""
        write_whole(path, "".join(row.line() for row in self.rows()))

    def verify(self) -> list[str]:
        """Return what is wrong: links, balances and answers are computed anew from the log."""
        with self._reading() as db:
            return audit_ledger(db)

    @contextmanager
    def _transaction(self, begin: str, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """Yield the connection inside a transaction; all of it is kept, or nothing."""
        with self.lock, explain_errors(self.path):
            self.db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self.db.execute(begin)
            try:
                yield self.db
                self.db.execute("COMMIT")
            except BaseException:
                if self.db.in_transaction:  # SQLite itself rolls back where the disk is full
                    self.db.execute("ROLLBACK")
                raise

    @contextmanager
    def _writing(self, durable: bool = True) -> Iterator[Books]:
        """Yield the books inside a transaction that holds the write lock.

        `durable`: on the disk on return. Else it is with the next one that is, or soon after.
        """
        with self._transaction("BEGIN IMMEDIATE", durable) as db:
            books = Books(db)
            yield books
            books.close()

    def _reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """Return a transaction that sees one moment and keeps nobody from writing."""
        return self._transaction("BEGIN")


def check_charge(charge: Charge) -> None:
    """Refuse what could not be booked or told apart later: ValueError."""
    if not (charge.request and charge.client and charge.model):
        raise ValueError(f"request, client and model are {charge[:3]}, must not be empty")
    if not 0 < charge.epsilon < LARGEST:
        raise ValueError(f"epsilon is {charge.epsilon} micro-epsilons, must be 1 or more")
    if not 0 <= charge.delta < 1:
        raise ValueError(f"delta is {charge.delta}, must be in [0, 1)")
    if len(charge.message) != DIGEST:
        raise ValueError(f"message holds {len(charge.message)} bytes, must be a digest of {DIGEST}")


def _book(books: Books, charge: Charge) -> Receipt | Refusal:
    """Return the stored answer, or book the charge, or say why not."""
    request, name, model, epsilon, delta, message = charge
    client = books.account("client", name)
    left = _left(client)
    known = _body(books.db, request)
    if known is not None and known != (name, model, message):
        return Refusal(request, "replayed", left)
    stored = books.db.execute(
        "SELECT answer FROM log JOIN answers USING (request) WHERE kind = 'charge' AND client = ? "
        "AND model = ? AND content = ? ORDER BY position LIMIT 1",
        (name, model, message),
    ).fetchone()
    if stored is not None:
        return Receipt(request, stored[0], False, left)
    if client is None:
        return Refusal(request, "unknown-client", 0)
    version = books.account("model", model) or (None, 0)
    if version[0] is not None and _left(version) < epsilon:
        return Refusal(request, "model-budget", _left(version))
    if left < epsilon:
        return Refusal(request, "budget", left)
    if delta and books.delta(name) + delta > MOST_DELTA:
        return Refusal(request, "delta", left)
    books.append(Entry("charge", request, name, model, epsilon, delta, message))
    books.keep("client", name, (client[0], client[1] + epsilon))
    books.keep("model", model, (version[0], version[1] + epsilon))
    return Receipt(request, None, True, left - epsilon)


def _body(db: sqlite3.Connection, request: str) -> tuple[str, str, bytes] | None:
    """Return what a request was first charged for: client, model, message."""
    found: tuple[str, str, bytes] | None = db.execute(
        "SELECT client, model, content FROM log WHERE kind = 'charge' AND request = ? LIMIT 1",
        (request,),
    ).fetchone()
    return found


def _left(known: Account | None) -> int:
    """Return what may still be spent; below 0 where a limit was lowered."""
    allowed, spent = known or (0, 0)
    return (allowed or 0) - spent


def _balance(db: sqlite3.Connection, client: str) -> Balance:
    found = read_account(db, "client", client)
    allowed, spent = found or (0, 0)
    return Balance(allowed or 0, spent, _left(found), spent_delta(db, client))
