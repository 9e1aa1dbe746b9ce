"""The ledger's file: SQLite, write-ahead log, every commit on the disk before it returns."""

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from threading import Thread
from time import monotonic, sleep
from typing import Any, Self, final

from fedcel.errors import LedgerError
from fedcel.privacy.ledger.database import (
    FORMAT,
    LOCK_SECONDS,
    OLDER_FORMAT,
    LedgerDatabase,
    Result,
    define_tables,
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
PROBE_BYTES = 2**18
"""Written by a probe, about as much as a group of 64 charges."""
WRITE_FORMAT = f"PRAGMA user_version = {FORMAT}"
BEGIN_SECONDS = 3.0
"""Given to another process to begin or end its use of a file: its log is not there yet."""
CHECKPOINT_TURNS = 3
"""Each takes what was written during the one before: a few milliseconds, then less than one."""

SCHEMA = (
    *define_tables(
        whole="INTEGER",
        real="REAL",
        blob="BLOB",
        of_log="CHECK (typeof(micro) = 'integer' AND typeof(delta) = 'real' "
        "AND typeof(content) = 'blob' AND typeof(link) = 'blob')",
        accounts_end="WITHOUT ROWID",
    ),
    *(
        f"CREATE TRIGGER log_{verb} BEFORE {verb} ON log "
        "BEGIN SELECT RAISE(ABORT, 'log is append-only'); END"
        for verb in ("UPDATE", "DELETE")
    ),
)

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

    address: Path
    format_query = "PRAGMA user_version"
    new_columns = (
        "ALTER TABLE accounts ADD COLUMN delta INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE accounts ADD COLUMN digest BLOB NOT NULL DEFAULT x''",
    )
    new_format = (WRITE_FORMAT,)

    def __init__(self, path: Path) -> None:
        path = path.absolute()  # the working folder may change
        self.address = path
        self._checkpoint = Thread()
        self._is_checkpoint_due = False
        self._rows_worked_in = 0
        with explain_errors(path):
            self._connection = connect_ledger(path)
        self._files = identify_files(path)

    def transact(self, work: Callable[[Self], Result], *, writing: bool) -> Result:
        """Do the work in a transaction."""
        db = self._connection
        with explain_errors(self.address):
            if writing:
                self._check_files()
                self._work_in_log()
            db.execute("BEGIN IMMEDIATE" if writing else "BEGIN")
            try:
                result = work(self)
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:  # SQLite itself rolls back where the disk is full
                    db.execute("ROLLBACK")
                raise
            if writing:
                self._check_files()  # before anybody is told of it
        return result

    def upgrade(self, complete: Callable[[Self], None]) -> None:
        """Bring tables of the older format to the present one, and check their columns."""
        super().upgrade(complete)
        if self.transact(read_columns, writing=False) != expect_columns():
            remedy = ERROR_REMEDIES["SQLITE_CORRUPT"]
            raise LedgerError(f"ledger {self.address}: {remedy} (its tables are not a ledger's)")

    def touch(self) -> None:
        """Write the first page, which holds the format, and as much as many charges beside it."""
        self.execute(WRITE_FORMAT)
        try:
            with TemporaryFile(dir=self.address.parent) as file:
                file.write(bytes(PROBE_BYTES))
        except OSError as error:
            remedy = ERROR_REMEDIES["SQLITE_IOERR"]
            raise LedgerError(f"ledger {self.address}: {remedy} ({error})") from error

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> list[Any]:
        """Run a statement."""
        return self._connection.execute(statement, parameters).fetchall()

    def expect_long_work(self) -> None:
        """Do nothing: a transaction lasts until its process ends it, or ends."""

    def check_integrity(self) -> list[str]:
        """Return the faults that SQLite finds in the file."""
        verdicts = self._connection.execute("PRAGMA integrity_check").fetchall()
        return [f"SQLite: {text}" for (text,) in verdicts if text != "ok"]

    def close(self) -> None:
        """Close the file."""
        if self._checkpoint.is_alive():
            self._checkpoint.join()
        self._connection.close()

    def _check_files(self) -> None:
        """Refuse to charge in files that nobody will find again: LedgerError."""
        files = identify_files(self.address)
        if files == self._files:
            return
        self._connection.execute("SELECT 1")  # a closed ledger has lost its log, too, and says so
        if files[0] == self._files[0]:
            raise LedgerError(
                f"ledger {self.address}: the -wal or -shm beside it was moved, deleted or replaced "
                "while it is in use, so nothing is charged or told; start nothing else with it, "
                "end all that use it, which puts what they charged into the file, and start again"
            )
        raise LedgerError(
            f"ledger {self.address}: the file was moved, deleted or replaced, so nothing is "
            "charged or told; put it back, or end all that use it, remove the -wal and -shm beside "
            "it, which belong to the old one, and start again"
        )

    def _work_in_log(self) -> None:
        """Have the write-ahead log worked into the file in time, in a thread, beside the commits.

        Within a commit it would take some ten milliseconds. The log starts over at the next commit
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
            self._checkpoint = Thread(
                target=checkpoint, args=(self.address, self._files), daemon=True
            )
            with suppress(RuntimeError):  # no more threads: a later commit does it
                self._checkpoint.start()


FileIds = tuple[tuple[int, int] | None, ...]
"""Device and number of a ledger's file, its write-ahead log and its shared memory: they stay while
the files are open. None: there is no such file."""


def list_files(path: Path) -> tuple[str, str, str]:
    """Return the names of a ledger's files, next to the one that a link leads to."""
    name = os.path.realpath(path)
    return name, f"{name}-wal", f"{name}-shm"


def identify_files(path: Path) -> FileIds:
    """Identify the three files at a path."""
    identities: list[tuple[int, int] | None] = []
    for name in list_files(path):
        try:
            status = os.stat(name)
        except OSError:
            identities.append(None)
        else:
            identities.append((status.st_dev, status.st_ino))
    return tuple(identities)


def checkpoint(path: Path, files: FileIds) -> None:
    """Work what was committed into the file; where that fails, a later commit does it."""
    if identify_files(path) != files:  # a connection of now would read another log
        return
    with suppress(sqlite3.Error), closing(sqlite3.connect(path)) as db:
        for _ in range(CHECKPOINT_TURNS):
            db.execute("PRAGMA wal_checkpoint(PASSIVE)")


@contextmanager
def explain_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into LedgerErrors that say what to do."""
    try:
        yield
    except UnicodeDecodeError as error:  # in a message of SQLite's own about what it has read
        raise LedgerError(f"ledger {path}: {ERROR_REMEDIES['SQLITE_CORRUPT']} ({error})") from error
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        if str(error).startswith("Could not decode to UTF-8"):
            name = "SQLITE_CORRUPT"
        remedies = (text for code, text in ERROR_REMEDIES.items() if name.startswith(code))
        raise LedgerError(f"ledger {path}: {next(remedies, error)} ({error})") from error


def connect_ledger(path: Path) -> sqlite3.Connection:
    """Return a connection to the ledger, which is made where there is none.

    Not for files on a network: the write-ahead log needs shared memory. sqlite3.Error where the
    file is damaged or cannot be written, LedgerError where it is of another program or format.
    """
    _create_private(path)
    _refuse_lost_log(path)
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
    """Make a missing file for its owner only; SQLite gives its log the same permissions.

    A file that is there is not opened: closing it would drop this process's locks on it.
    """
    try:
        os.close(os.open(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, FILE_MODE))
    except FileExistsError:
        return
    except OSError as error:
        remedy = ERROR_REMEDIES["SQLITE_CANTOPEN"]
        raise LedgerError(f"ledger {path}: {remedy} ({error})") from error


def _refuse_lost_log(path: Path) -> None:
    """Refuse a file in use whose log was removed: what its users charged is not to be seen here.

    Without anybody who uses it, the whole file can be locked. LedgerError where it cannot.
    """
    deadline = monotonic() + BEGIN_SECONDS
    while not all(map(os.path.exists, list_files(path))):
        with closing(sqlite3.connect(path, timeout=0)) as db:
            try:
                db.execute("PRAGMA locking_mode = EXCLUSIVE")
                db.execute("SELECT count(*) FROM sqlite_master")
            except sqlite3.Error as error:
                if not getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
                    return  # the next connection tells it
            else:
                return
        if monotonic() > deadline:
            raise LedgerError(
                f"ledger {path}: another process uses it, but the -wal or -shm beside it was "
                "removed, and what was charged there is not in the file yet; end that process, "
                "which puts it in, and start again"
            )
        sleep(0.01)


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
            db.execute(WRITE_FORMAT)
        db.execute("COMMIT")
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new file's name is durable, as SQLite makes its contents
        finally:
            os.close(folder)
    # Of the indexes, too: through a damaged one a charge would not be found.
    verdict = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if verdict != "ok":
        raise LedgerError(f"ledger {path}: {ERROR_REMEDIES['SQLITE_CORRUPT']} ({verdict})")


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
    """Whether the file is empty; LedgerError where it is not a ledger of this format."""
    program, version, tables = db.execute(
        "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master) "
        "FROM pragma_application_id, pragma_user_version"
    ).fetchone()
    if (program, version, tables) == (0, 0, 0):
        return True
    if program != APPLICATION_ID:
        raise LedgerError(f"ledger {path}: it is another program's SQLite file; name another file")
    if version not in (FORMAT, OLDER_FORMAT):
        raise LedgerError(
            f"ledger {path}: its format is {version}, this version reads {FORMAT}; use the "
            "version that wrote it"
        )
    return False


def read_columns(db: SqliteDatabase | sqlite3.Connection) -> list[tuple[object, ...]]:
    """Return the columns of both tables: a damaged word there would change what is read."""
    rows = db.execute(
        'SELECT tables.name, columns.name, columns.type, columns."notnull", columns.pk '
        "FROM sqlite_master AS tables, pragma_table_info(tables.name) AS columns "
        "WHERE tables.type = 'table' AND tables.name IN ('log', 'accounts') "
        "ORDER BY tables.name, columns.cid"
    )
    return list(rows)


@cache
def expect_columns() -> list[tuple[object, ...]]:
    """Return the columns of a new ledger."""
    with closing(sqlite3.connect(":memory:")) as db:
        for statement in SCHEMA:
            db.execute(statement)
        return read_columns(db)
