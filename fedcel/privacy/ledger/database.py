"""What a ledger needs of its database; SQLite and PostgreSQL give it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from fedcel.privacy.ledger.address import LedgerAddress

Result = TypeVar("Result")

LOCK_SECONDS = 30.0
"""How long to wait for another process's transaction."""
FORMAT = 3
"""Of the tables; the same in both databases. In format 1 an answer is in an entry and a table of
its own. Up to format 2 accounts have neither a delta nor a digest."""
UPGRADABLE_FORMATS = (1, 2)


@runtime_checkable
class Rows(Protocol):
    """What a statement returned."""

    @property
    def rowcount(self) -> int:
        """How many rows it changed."""

    def fetchone(self) -> Any:
        """Return the next row, None after the last."""

    def fetchall(self) -> list[Any]:
        """Return all rows that are left."""

    def __iter__(self) -> Iterator[Any]:
        """Yield all rows that are left."""


class LedgerDatabase(ABC):
    """One connection to a ledger's tables, for one thread at a time.

    Statements are SQL that both databases read, with `?` for each parameter. Every method raises
    LedgerError where the database cannot be read or written.
    """

    address: LedgerAddress

    @abstractmethod
    def upgrade(self, complete: Callable[[Self], None]) -> None:
        """Bring tables of an older format to the present one, and prove that they can be locked.

        Args:
            complete: Fills the new columns; whatever it raises leaves the tables as they were.
        """

    @abstractmethod
    def touch(self) -> None:
        """Write something that changes nothing, in the transaction's work."""

    @abstractmethod
    def transact(self, work: Callable[[Self], Result], *, writing: bool) -> Result:
        """Do the work in a transaction; all of it is kept, on the disk on return, or nothing.

        Args:
            work: Given this database. It may be called again after nothing of it was kept.
            writing: Whether it holds the write lock, which one process has at a time. Without it
                the work sees one moment and keeps nobody from writing.

        Returns:
            What the work returned.
        """

    @abstractmethod
    def execute(self, statement: str, parameters: Sequence[object] = ()) -> Rows:
        """Run a statement of the transaction's work."""

    @abstractmethod
    def executemany(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Run a statement of the transaction's work once for each row of parameters."""

    @abstractmethod
    def expect_long_work(self) -> None:
        """Say that the transaction's work computes for long between two statements."""

    @abstractmethod
    def check_integrity(self) -> list[str]:
        """Return what the database itself finds wrong with its files."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection; what was committed stays."""
