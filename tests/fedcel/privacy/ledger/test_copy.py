"""A ledger that is copied: between files and databases, whole or not at all."""

import time
from pathlib import Path

import pytest

from fedcel.errors import LedgerError, SettingsError
from fedcel.privacy.ledger import MICRO, Ledger, LedgerSums, Receipt, Refusal
from fedcel.privacy.ledger import ledger as ledger_module
from fedcel.privacy.ledger.database import LedgerDatabase
from tests.fedcel.privacy.ledger.charges import charge, fresh, pay
from tests.fedcel.privacy.ledger.edits import edit_tables
from tests.fedcel.privacy.ledger.postgres import PostgresServer


@pytest.fixture(params=["to PostgreSQL", "to a file"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return where a ledger may be copied to."""
    if request.param == "to a file":
        return str(tmp_path / "copy.db")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.make_database()


def test_a_copy_goes_on_where_the_ledger_was(ledger: Ledger, target: str) -> None:
    """Same rows, same links, same balances; answers stay free, a spent budget stays spent."""
    ledger.grant("zoë", 5)
    ledger.limit("v2", MICRO)
    ledger.charge([charge("a"), charge("b")], [b"answer\0", b""])
    with Ledger.open(target) as copy:
        assert ledger.copy_to(copy) == LedgerSums(5, 2, 2, 3 * MICRO + 5, 2 * MICRO)
        assert copy.rows() == ledger.rows()
        assert copy.clients() == ledger.clients()
        assert pay(copy, [charge("a"), charge("c"), charge("d")]) == [
            Receipt(b"answer\0", is_fresh=False, remaining=MICRO),
            fresh("c", 0),
            Refusal("budget", 0),
        ]
        assert copy.verify() == []
        with pytest.raises(SettingsError, match="is not empty, must be a new ledger"):
            ledger.copy_to(copy)
    with pytest.raises(SettingsError, match="is both ledgers"):
        ledger.copy_to(ledger)


def test_a_ledger_that_is_not_sound_is_not_copied(address: str, target: str) -> None:
    """What was edited does not become sound by a copy."""
    with Ledger.open(address) as ledger:
        ledger.grant("ann", MICRO)
    edit_tables(address, "UPDATE accounts SET allowed = 9")
    with Ledger.open(address) as ledger, Ledger.open(target) as copy:
        with pytest.raises(LedgerError, match="is not sound, so nothing was copied"):
            ledger.copy_to(copy)
        assert copy.rows() == [] and copy.clients() == {}


def test_a_copy_that_goes_wrong_leaves_nothing(
    ledger: Ledger, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last table is lost on the way, or its sums differ."""
    with Ledger.open(target) as copy:
        with monkeypatch.context() as patch:
            insert = ledger_module.insert_rows

            def lose_accounts(
                db: LedgerDatabase, table: str, rows: list[tuple[object, ...]]
            ) -> None:
                insert(db, table, rows if table == "log" else [])

            patch.setattr(ledger_module, "insert_rows", lose_accounts)
            with pytest.raises(LedgerError, match="the copy in .* is not sound"):
                ledger.copy_to(copy)
        with monkeypatch.context() as patch:
            read, reads = ledger_module.read_sums, iter(range(9))
            patch.setattr(
                ledger_module,
                "read_sums",
                lambda db: read(db)._replace(spent=max(0, next(reads) - 1)),
            )
            with pytest.raises(LedgerError, match="would hold"):
                ledger.copy_to(copy)
        assert copy.rows() == [] and copy.clients() == {}
        ledger.copy_to(copy)
        assert copy.rows() == ledger.rows()


def test_long_work_is_not_ended_as_a_process_that_hangs(
    postgres: PostgresServer, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy and an audit, between whose statements much is computed."""
    postgres_database = pytest.importorskip("fedcel.privacy.ledger.postgres_database")
    monkeypatch.setattr(postgres_database, "IDLE_SECONDS", 0.2)
    audit, audits = ledger_module.audit_ledger, list[None]()

    def audit_slowly(db: LedgerDatabase) -> list[str]:
        audits.append(None)
        db.execute("SELECT 1")
        time.sleep(0.5)
        return audit(db)

    monkeypatch.setattr(ledger_module, "audit_ledger", audit_slowly)
    with Ledger.open(postgres.make_database()) as ledger, Ledger.open(target) as copy:
        ledger.grant("ann", MICRO)
        assert ledger.copy_to(copy).rows == 1
        audits.clear()
        assert ledger.verify() == copy.verify() == []
        assert len(audits) == 2  # none was begun again
