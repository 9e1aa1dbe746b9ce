"""The tables of a ledger, and the database below it: SQLite or PostgreSQL."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self, TypeVar

from fedcel.privacy.ledger.address import LedgerAddress

Result = TypeVar("Result")

LOCK_SECONDS = 30.0
"""Time to wait for another process's transaction."""
FORMAT = 3
"""Format of the tables, the same in both databases."""
OLDER_FORMAT = 2
"""Of 0.2.0: accounts have neither a delta nor a digest. It is upgraded when it is opened."""


def define_tables(
    *, whole: str, real: str, blob: str, of_log: str, accounts_end: str = ""
) -> tuple[str, ...]:
    """Make the statements that define a ledger's tables, with a database's names of types.

    `of_log` are columns or checks that this database's log has more, `accounts_end` options of the
    table of accounts.
    """
    return (
        # What happened, in order; everything else follows from it.
        f"""CREATE TABLE log (
            position {whole} PRIMARY KEY,
            kind TEXT NOT NULL CHECK (kind IN ('grant', 'limit', 'charge')),
            request TEXT NOT NULL,
            client TEXT NOT NULL,
            model TEXT NOT NULL,
            micro {whole} NOT NULL,
            delta {real} NOT NULL,
            content {blob} NOT NULL,
            link {blob} NOT NULL,
            answer {blob},
            {of_log})""",
        "CREATE INDEX by_request ON log (request) WHERE kind = 'charge'",
        "CREATE INDEX by_message ON log (client, model, content) WHERE kind = 'charge'",
        f"""CREATE TABLE accounts (
            scope TEXT NOT NULL CHECK (scope IN ('client', 'model')),
            name TEXT NOT NULL,
            allowed {whole},
            spent {whole} NOT NULL DEFAULT 0,
            delta {whole} NOT NULL,
            digest {blob} NOT NULL,
            PRIMARY KEY (scope, name)) {accounts_end}""",
    )


class LedgerDatabase(ABC):
    """One connection to a ledger's tables, for one thread at a time.

    Statements are SQL that both databases read, with `?` for each parameter. Every method raises
    LedgerError where the database cannot be read or written.
    """

    address: LedgerAddress
    format_query: ClassVar[str]
    new_columns: ClassVar[Sequence[str]]
    """Statements that make the columns which the older format lacks."""
    new_format: ClassVar[Sequence[str]]
    """Statements once these are filled."""

    def upgrade(self, complete: Callable[[Self], None]) -> None:
        """Bring older tables to the present format; they stay where `complete` raises."""
        self.transact(lambda db: db._upgrade_tables(complete), writing=True)

    def _upgrade_tables(self, complete: Callable[[Self], None]) -> None:
        """Upgrade tables of the older format, inside a transaction."""
        if self.execute(self.format_query) == [(OLDER_FORMAT,)]:
            for statement in self.new_columns:
                self.execute(statement)
            complete(self)
            for statement in self.new_format:
                self.execute(statement)

    @abstractmethod
    def touch(self) -> None:
        """Write something that changes nothing, in the transaction's work."""

    @abstractmethod
    def transact(self, work: Callable[[Self], Result], *, writing: bool) -> Result:
        """Do the work in a transaction; all of it is kept, on the disk on return, or nothing.

        It may be done again after nothing of it was kept. With `writing` it holds the write lock,
        which one process has at a time; without, it sees one moment and keeps nobody from writing.
        """

    @abstractmethod
    def execute(self, statement: str, parameters: Sequence[object] = ()) -> list[Any]:
        """Run a statement of the transaction's work; return its rows."""

    @abstractmethod
    def expect_long_work(self) -> None:
        """Announce that the transaction's work computes for long between two statements."""

    def find_risk(self) -> str | None:
        """Describe how charges may be forgotten that were kept; None: in no way that is known."""
        return None

    @abstractmethod
    def check_integrity(self) -> list[str]:
        """Return the faults that the database itself finds in its files."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection; what was committed stays."""
