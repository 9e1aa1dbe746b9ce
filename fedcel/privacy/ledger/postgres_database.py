"""A ledger in PostgreSQL, shared by processes on several hosts.

One row, locked by each transaction that writes, makes writers take turns: the log is a chain, so
its rows have one order. No time is read, neither of a host nor of the database.

A connection may break while a commit is under way; nobody knows then whether it was kept. Each
attempt therefore marks its rows with a name of its own. The next connection waits for the row's
lock, which the broken transaction holds until it has ended, and looks for the name: what is there
was kept, what is not is done again. Nothing is booked twice, nothing is taken for booked that is
not.
"""

import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any, Generic, Self, final

import psycopg
from psycopg import errors

from fedcel.errors import LedgerError
from fedcel.privacy.ledger.address import PostgresAddress
from fedcel.privacy.ledger.database import (
    FORMAT,
    LOCK_SECONDS,
    OLDER_FORMAT,
    LedgerDatabase,
    Result,
    define_tables,
)

SCHEMA_NAME = "fedcel_ledger"
CREATION_LOCK = 0x6665644C
"""Held while tables are made; the same number that marks a file of SQLite."""
CONNECT_SECONDS = 3
RETRY_SECONDS = 10.0
"""Time for which a lost connection, or a conflict, is tried again; then the caller is told."""
IDLE_SECONDS = LOCK_SECONDS / 2
"""After this the server ends a writing transaction whose process hangs: others wait longer."""

SCHEMA = (
    f"CREATE SCHEMA {SCHEMA_NAME}",
    "CREATE TABLE ledger (format INTEGER NOT NULL)",
    f"INSERT INTO ledger VALUES ({FORMAT})",
    *define_tables(
        whole="BIGINT",
        real="DOUBLE PRECISION",
        blob="BYTEA",
        of_log="attempt TEXT NOT NULL DEFAULT current_setting('fedcel.attempt')",
    ),
    """CREATE FUNCTION refuse_edit() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$""",
    "CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON log "
    "FOR EACH STATEMENT EXECUTE FUNCTION refuse_edit()",
)

FIND_LATE_STANDBY = (
    "SELECT current_setting('synchronous_standby_names') = '' "
    "AND EXISTS (SELECT FROM pg_stat_replication)"
)
ERROR_REMEDIES: tuple[tuple[type[psycopg.Error], str, str], ...] = (
    (
        errors.InvalidPassword,
        "password",
        "name a user and a password that it knows, or put it in ~/.pgpass",
    ),
    (
        errors.InvalidAuthorizationSpecification,
        "pg_hba.conf",
        "let this user in, see the server's pg_hba.conf",
    ),
    (errors.InvalidCatalogName, "does not exist", "make the database first, with createdb"),
    (
        errors.InsufficientPrivilege,
        "",
        "grant the user CREATE on the database, or all on its tables; only their owner can bring "
        f"tables of an older format to format {FORMAT}, by opening it once",
    ),
    (errors.ReadOnlySqlTransaction, "", "it only reads; name the primary server"),
    (errors.LockNotAvailable, "", f"another process has held it for {LOCK_SECONDS:g} seconds"),
    (errors.DiskFull, "", "the server's disk is full; free space, nothing was charged"),
    (errors.UndefinedTable, "", "its tables are not all there; restore a backup"),
    (errors.DataCorrupted, "", "it is damaged; restore a backup"),
    (errors.IndexCorrupted, "", "it is damaged; REINDEX it, or restore a backup"),
    (psycopg.OperationalError, "", "start the server, or check host, port and network"),
)
"""Kind of an error, the word by which a refused connection of no kind is known, and the remedy. The
first that fits is told."""
CONFLICTS = (errors.SerializationFailure, errors.DeadlockDetected)
"""After these the server has kept nothing, and a second try may succeed."""


@final
@dataclass(frozen=True)
class Commit(Generic[Result]):
    """A commit under way: its rows, where kept, are after the position and bear the name."""

    attempt: str
    position: int
    outcome: Result


@final
class PostgresDatabase(LedgerDatabase):
    """A ledger in a database of PostgreSQL; a lost connection is replaced."""

    address: PostgresAddress
    format_query = "SELECT format FROM ledger"
    new_columns = ("ALTER TABLE accounts ADD COLUMN delta BIGINT, ADD COLUMN digest BYTEA",)
    new_format = (  # an older version that still runs can then write no account
        "ALTER TABLE accounts ALTER COLUMN delta SET NOT NULL, ALTER COLUMN digest SET NOT NULL",
        f"UPDATE ledger SET format = {FORMAT}",
    )

    def __init__(self, address: PostgresAddress) -> None:
        self.address = address
        self._is_closed = False
        with explain_errors(address):
            self._connection = connect(address)
            try:
                prepare(self._connection, address)
            except BaseException:
                self._connection.close()
                raise

    def touch(self) -> None:
        """Write the row that holds the format."""
        self._connection.execute("UPDATE ledger SET format = format")

    def transact(self, work: Callable[[Self], Result], *, writing: bool) -> Result:
        """Do the work in a transaction; again after a conflict, or on a new connection."""
        deadline = monotonic() + RETRY_SECONDS
        unsure: Commit[Result] | None = None
        with explain_errors(self.address):
            while True:
                try:
                    if self._is_closed:
                        raise LedgerError(f"ledger {self.address}: it is closed; open it again")
                    if self._connection.closed:
                        self._connection = connect(self.address)
                    if unsure is not None and self._was_kept(unsure):
                        return unsure.outcome
                    unsure = None
                    if not writing:
                        return self._read(work)
                    unsure = self._write(work)
                    self._commit()
                    return unsure.outcome
                except psycopg.Error as error:
                    if not (self._connection.closed or isinstance(error, CONFLICTS)):
                        raise
                    if monotonic() > deadline:
                        raise
                    sleep(random.uniform(0.01, 0.1))

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> list[Any]:
        """Run a statement."""
        cursor = self._connection.execute(statement.replace("?", "%s"), parameters)
        return cursor.fetchall() if cursor.description else []

    def expect_long_work(self) -> None:
        """Let the transaction last: long computations between its statements are no hanging."""
        self._connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")

    def find_risk(self) -> str | None:
        """Describe a standby that learns of commits later than the service's clients do."""
        if not self.transact(lambda db: db.execute(FIND_LATE_STANDBY), writing=False)[0][0]:
            return None
        return (
            f"ledger {self.address}: its standby learns of charges after the answers are given; "
            "if it takes over, the last ones are forgotten. Set synchronous_standby_names = '*' on "
            "the server"
        )

    def check_integrity(self) -> list[str]:
        """Return nothing: the server checks its own pages."""
        return []

    def close(self) -> None:
        """Close the connection, for good."""
        self._is_closed = True
        self._connection.close()

    def _read(self, work: Callable[[Self], Result]) -> Result:
        """Do work on one moment of the database."""
        with self._rolling_back():
            self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            result = work(self)
            self._commit()
        return result

    def _write(self, work: Callable[[Self], Result]) -> Commit[Result]:
        """Do work with the lock held, up to the commit."""
        attempt = secrets.token_hex(16)
        with self._rolling_back():
            position = self._begin_writing(attempt)
            return Commit(attempt, position, work(self))

    def _begin_writing(self, attempt: str) -> int:
        """Take the lock; return a position that the log had reached before.

        READ COMMITTED: each statement after the lock sees all that was committed before it.
        """
        self._connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
        row: tuple[int, str, int, str] | None = self._connection.execute(
            "SELECT format, set_config('fedcel.attempt', %s, true), "
            "(SELECT coalesce(max(position), 0) FROM log), "
            "set_config('idle_in_transaction_session_timeout', %s, true) FROM ledger FOR UPDATE",
            (attempt, f"{IDLE_SECONDS:g}s"),
        ).fetchone()
        if row is None:
            raise LedgerError(f"ledger {self.address}: it was emptied; restore a backup")
        return row[2]

    def _was_kept(self, commit: Commit[Result]) -> bool:
        """Whether a commit was kept, once it can no longer be under way."""
        with self._rolling_back():
            self._begin_writing("")
            row = self._connection.execute(
                "SELECT 1 FROM log WHERE position > %s AND attempt = %s LIMIT 1",
                (commit.position, commit.attempt),
            ).fetchone()
            self._connection.execute("ROLLBACK")
        return row is not None

    def _commit(self) -> None:
        """Commit; LedgerError where the server did something else."""
        with self._rolling_back():
            status = self._connection.execute("COMMIT").statusmessage
        if status != "COMMIT":
            raise LedgerError(f"ledger {self.address}: it answered {status} to a commit; try again")

    @contextmanager
    def _rolling_back(self) -> Iterator[None]:
        """End the transaction where anything goes wrong in it."""
        try:
            yield
        except BaseException:
            with suppress(psycopg.Error):  # the connection may be gone, and the transaction with it
                self._connection.execute("ROLLBACK")
            raise


@contextmanager
def explain_errors(address: PostgresAddress) -> Iterator[None]:
    """Turn the driver's errors into LedgerErrors that say what to do and hold no password."""
    try:
        yield
    except psycopg.Error as error:
        text = " ".join(str(error).split()) or type(error).__name__
        for secret in sorted(address.secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        remedies = (
            remedy
            for kind, sign, remedy in ERROR_REMEDIES
            if isinstance(error, kind) or (sign and "FATAL" in text and sign in text)
        )
        parts = [part for part in (next(remedies, ""), f"({text})") if part]
        raise LedgerError(f"ledger {address}: {' '.join(parts)}") from None


def connect(address: PostgresAddress) -> "psycopg.Connection[Any]":
    """Return a connection whose commits are on the disk and whose waits end."""
    connection = psycopg.connect(
        address.url,
        autocommit=True,  # transactions are begun by statements of our own
        connect_timeout=CONNECT_SECONDS,
        application_name="fedcel",
        keepalives_idle=2,
        keepalives_interval=1,
        keepalives_count=2,
        tcp_user_timeout=4_000,  # below RETRY_SECONDS: there is time for another connection
    )
    try:
        settings = {
            "search_path": SCHEMA_NAME,
            "lock_timeout": f"{LOCK_SECONDS:g}s",
            "idle_in_transaction_session_timeout": "0",
            "client_encoding": "UTF8",
        }
        if fetch_row(connection, "SHOW synchronous_commit") == ("off",):
            settings["synchronous_commit"] = "on"
        for name, value in settings.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(connection: "psycopg.Connection[Any]", address: PostgresAddress) -> None:
    """Check the server before anything in it is changed, then make what is missing."""
    fsync, encoding = fetch_row(
        connection, "SELECT current_setting('fsync'), current_setting('server_encoding')"
    )
    if fsync != "on":
        raise LedgerError(
            f"ledger {address}: the server's fsync is off, so that a crash would lose charges; "
            "turn it on"
        )
    if encoding != "UTF8":
        raise LedgerError(
            f"ledger {address}: the database's encoding is {encoding}, must be UTF8; make another "
            "with createdb --encoding UTF8 --template template0"
        )
    if not has_tables(connection, address):
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (CREATION_LOCK,))
            if not has_tables(connection, address):  # another process may have been faster
                for statement in SCHEMA:
                    connection.execute(statement)
    with connection.transaction(force_rollback=True):  # a question would be too late
        connection.execute("SELECT format FROM ledger FOR UPDATE")


def has_tables(connection: "psycopg.Connection[Any]", address: PostgresAddress) -> bool:
    """Whether the tables are there; LedgerError where they are no ledger of this format."""
    has_schema, has_ledger = fetch_row(
        connection,
        "SELECT to_regnamespace(%s) IS NOT NULL, to_regclass(%s) IS NOT NULL",
        (SCHEMA_NAME, f"{SCHEMA_NAME}.ledger"),
    )
    if not has_schema:
        return False
    if not has_ledger:
        raise LedgerError(
            f"ledger {address}: its schema {SCHEMA_NAME} is another program's; name another "
            "database"
        )
    formats = connection.execute(PostgresDatabase.format_query).fetchall()
    if formats not in ([(FORMAT,)], [(OLDER_FORMAT,)]):
        raise LedgerError(
            f"ledger {address}: its format is {', '.join(str(row[0]) for row in formats)}, this "
            f"version reads {FORMAT}; use the version that wrote it"
        )
    return True


def fetch_row(
    connection: "psycopg.Connection[Any]", statement: str, parameters: Sequence[object] = ()
) -> tuple[Any, ...]:
    """Return the first row of a statement that has one."""
    row: tuple[Any, ...] | None = connection.execute(statement, parameters).fetchone()
    assert row is not None
    return row
