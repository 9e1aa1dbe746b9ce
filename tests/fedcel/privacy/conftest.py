"""A ledger in either database that is sound at the end of every test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedcel.privacy.ledger import MICRO, Ledger
from tests.fedcel.privacy.ledger.postgres import PostgresServer


@pytest.fixture(params=["sqlite", "postgresql"])
def new_address(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], str]:
    """Return what makes the address of a new ledger, in each database in turn."""
    if request.param == "sqlite":
        return lambda: str(tmp_path_factory.mktemp("ledger") / "ledger.db")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.empty_database


@pytest.fixture
def address(new_address: Callable[[], str]) -> str:
    """Return where a new ledger may be made."""
    return new_address()


@pytest.fixture
def ledger(address: str) -> Iterator[Ledger]:
    """Yield a new ledger in which ann has 3 epsilon, sound at the end."""
    with Ledger.open(address) as opened:
        opened.grant("ann", 3 * MICRO)
        yield opened
        assert opened.verify() == []


@pytest.fixture
def ledger_file(tmp_path: Path) -> Iterator[Ledger]:
    """Yield the same in a file, for tests of what SQLite alone does."""
    with Ledger.open(tmp_path / "ledger.db") as opened:
        opened.grant("ann", 3 * MICRO)
        yield opened
        assert opened.verify() == []
