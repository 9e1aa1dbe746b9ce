"""The ledger's file: SQLite, write-ahead log, every commit on the disk before it returns."""

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Self, final

from fedcel.errors import LedgerError
from fedcel.privacy.ledger.database import (
    FORMAT,
    LOCK_SECONDS,
    UPGRADABLE_FORMATS,
    LedgerDatabase,
    Result,
)

APPLICATION_ID = 0x6665644C
"""Marks a SQLite file as a ledger ("fedL")."""
FILE_MODE = 0o600
CACHED_STATEMENTS = 512
"""Kept compiled: a statement has as many rows as a group has charges."""

PAGE_BYTES = 2048
"""Of a new file. Keys arrive in no order, so that each changes a page of its own: with SQLite's
4096 a charge writes twice as much."""
CHECKPOINT_ROWS = 8000
"""Written before the write-ahead log is worked into the file, some 50 MiB of it. A page that many
groups change is then written once for all of them."""
CHECKPOINT_PAGES = 64_000
"""Of the log at which a commit does that work itself, should the thread for it never come to it."""
CHECKPOINT_TURNS = 3
"""Each takes what was written during the one before: a few milliseconds, then less than one."""

SCHEMA = (
    # What happened, in order; everything else follows from it.
    """CREATE TABLE log (
        position INTEGER PRIMARY KEY,
        kind TEXT NOT NULL CHECK (kind IN ('grant', 'limit', 'charge', 'answer')),
        request TEXT NOT NULL,
        client TEXT NOT NULL,
        model TEXT NOT NULL,
        micro INTEGER NOT NULL CHECK (typeof(micro) = 'integer'),
        delta REAL NOT NULL CHECK (typeof(delta) = 'real'),
        content BLOB NOT NULL CHECK (typeof(content) = 'blob'),
        link BLOB NOT NULL CHECK (typeof(link) = 'blob'),
        answer BLOB)""",
    "CREATE INDEX by_request ON log (request) WHERE kind = 'charge'",
    "CREATE INDEX by_message ON log (client, model, content) WHERE kind = 'charge'",
    # Of format 1; answers are in the log since.
    """CREATE TABLE answers (
        request TEXT PRIMARY KEY,
        answer BLOB NOT NULL)""",
    """CREATE TABLE accounts (
        scope TEXT NOT NULL CHECK (scope IN ('client', 'model')),
        name TEXT NOT NULL,
        allowed INTEGER,
        spent INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (scope, name)) WITHOUT ROWID""",
    *(
        f"CREATE TRIGGER {table}_{verb} BEFORE {verb} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
        for table in ("log", "answers")
        for verb in ("UPDATE", "DELETE")
    ),
)

UPGRADE = "ALTER TABLE log ADD COLUMN answer BLOB"
"""From format 1."""

ERROR_REMEDIES = {
    "SQLITE_FULL": "the disk is full; free space, nothing was charged",
    "SQLITE_IOERR": "the disk refuses to read or write; check its space, quota and health",
    "SQLITE_READONLY": "it is read-only; make the file and its folder writable",
    "SQLITE_CANTOPEN": "it cannot be opened for writing; check that its folder exists, is writable",
    "SQLITE_CORRUPT": "it is damaged; restore a backup, or go on with a new file",
    "SQLITE_NOTADB": "it is no ledger, or damaged; name another file, or restore a backup",
    "SQLITE_BUSY": f"another process has held it for {LOCK_SECONDS:g} seconds; end that one",
}


@final
class SqliteDatabase(LedgerDatabase):
    """A ledger in a file on a local disk."""

    def __init__(self, path: Path) -> None:
        path = path.absolute()  # the working folder may change
        self.path = path
        self._checkpoint = Thread()
        self._is_checkpoint_due = False
        self._rows_worked_in = 0
        with explain_errors(path):
            self._connection = connect_ledger(path)
        self._file = identify_file(path)

    def transact(self, work: Callable[[Self], Result], *, writing: bool) -> Result:
        """Do the work in a transaction."""
        db = self._connection
        with explain_errors(self.path):
            if writing:
                self._check_file()
                self._work_in_log()
            db.execute("BEGIN IMMEDIATE" if writing else "BEGIN")
            try:
                result = work(self)
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:  # SQLite itself rolls back where the disk is full
                    db.execute("ROLLBACK")
                raise
        return result

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> sqlite3.Cursor:
        """Run a statement."""
        return self._connection.execute(statement, parameters)

    def executemany(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Run a statement once for each row of parameters."""
        self._connection.executemany(statement, rows)

    def expect_long_work(self) -> None:
        """Do nothing: a transaction lasts until its process ends it, or ends."""

    def check_integrity(self) -> list[str]:
        """Return what SQLite finds wrong with the file."""
        verdicts = self._connection.execute("PRAGMA integrity_check").fetchall()
        return [f"SQLite: {text}" for (text,) in verdicts if text != "ok"]

    def close(self) -> None:
        """Close the file."""
        if self._checkpoint.is_alive():
            self._checkpoint.join()
        self._connection.close()

    def _check_file(self) -> None:
        """Refuse to charge in a file that nobody will find again: LedgerError."""
        if identify_file(self.path) != self._file:
            raise LedgerError(
                f"ledger {self.path}: the file was moved, deleted or replaced, so nothing is "
                "charged; put it back, or end all that use it, remove the -wal and -shm beside it, "
                "which belong to the old one, and start again"
            )

    def _work_in_log(self) -> None:
        """Have the write-ahead log worked into the file in time, in a thread, beside the commits.

        Within a commit it would take some ten milliseconds. The log begins anew at the next commit
        that finds nothing left of it, so that the rest, which is small, is done here.
        """
        if self._checkpoint.is_alive():
            return
        if self._is_checkpoint_due:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            self._is_checkpoint_due = False
        rows = self._connection.total_changes
        if rows - self._rows_worked_in > CHECKPOINT_ROWS:
            self._rows_worked_in = rows
            self._is_checkpoint_due = True
            self._checkpoint = Thread(target=checkpoint, args=(self.path,), daemon=True)
            with suppress(RuntimeError):  # no more threads: a later commit does it
                self._checkpoint.start()


def identify_file(path: Path) -> tuple[int, int] | None:
    """Return a file's device and number, which stay while it is open; None where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def checkpoint(path: Path) -> None:
    """Work what was committed into the file; where that fails, a later commit does it."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(path)) as db:
        for _ in range(CHECKPOINT_TURNS):
            db.execute("PRAGMA wal_checkpoint(PASSIVE)")


@contextmanager
def explain_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into LedgerErrors that say what to do."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        remedies = (text for code, text in ERROR_REMEDIES.items() if name.startswith(code))
        raise LedgerError(f"ledger {path}: {next(remedies, error)} ({error})") from error


def connect_ledger(path: Path) -> sqlite3.Connection:
    """Return a connection to the ledger, which is made where there is none.

    Not for files on a network: the write-ahead log needs shared memory. sqlite3.Error where the
    file is damaged or cannot be written, LedgerError where it is of another program or format.
    """
    _create_private(path)
    db = sqlite3.connect(
        path,
        timeout=LOCK_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=CACHED_STATEMENTS,
    )
    try:
        _prepare(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _create_private(path: Path) -> None:
    """Make a missing file for its owner alone; SQLite gives its log the same permissions.

    A file that is there is not opened: closing it would drop this process's locks on it.
    """
    try:
        os.close(os.open(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, FILE_MODE))
    except FileExistsError:
        return
    except OSError as error:
        remedy = ERROR_REMEDIES["SQLITE_CANTOPEN"]
        raise LedgerError(f"ledger {path}: {remedy} ({error})") from error


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    """Check the file before anything in it is changed, then make what is missing."""
    db.execute("BEGIN")  # one moment of a file that another process may be making
    is_new = _is_new(db, path)
    db.execute("COMMIT")
    db.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # of a file that has pages nothing changes
    if _enable_write_ahead_log(db) != "wal":
        raise LedgerError(f"ledger {path}: no write-ahead log here; use a local disk")
    db.execute("PRAGMA synchronous = FULL")
    db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    if is_new:
        db.execute("BEGIN IMMEDIATE")
        if _is_new(db, path):  # another process may have been faster
            for statement in SCHEMA:
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {FORMAT}")
        db.execute("COMMIT")
        _sync_folder(path.parent)
    verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise LedgerError(f"ledger {path}: {ERROR_REMEDIES['SQLITE_CORRUPT']} ({verdict})")
    db.execute("BEGIN IMMEDIATE")  # the first question would be too late to find it read-only
    if _read_format(db) in UPGRADABLE_FORMATS:
        db.execute(UPGRADE)
        db.execute(f"PRAGMA user_version = {FORMAT}")
    db.execute("COMMIT")


def _enable_write_ahead_log(db: sqlite3.Connection) -> str:
    """Return the journal's mode once it is set: here SQLite itself waits for no other process."""
    deadline = monotonic() + LOCK_SECONDS
    while True:
        try:
            return str(db.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith("SQLITE_BUSY") or monotonic() > deadline:
                raise
        sleep(0.01)


def _is_new(db: sqlite3.Connection, path: Path) -> bool:
    """Say whether the file is empty; LedgerError where it is not a ledger of this format."""
    program = db.execute("PRAGMA application_id").fetchone()[0]
    version = _read_format(db)
    tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if (program, version, tables) == (0, 0, 0):
        return True
    if program != APPLICATION_ID:
        raise LedgerError(f"ledger {path}: it is another program's SQLite file; name another file")
    if version not in (FORMAT, *UPGRADABLE_FORMATS):
        raise LedgerError(
            f"ledger {path}: its format is {version}, this version reads {FORMAT}; use the "
            "version that wrote it"
        )
    return False


def _read_format(db: sqlite3.Connection) -> int:
    """Return the format of a ledger's file."""
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    return version


def _sync_folder(folder: Path) -> None:
    """Make a new file's name durable, as SQLite does for its contents."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
