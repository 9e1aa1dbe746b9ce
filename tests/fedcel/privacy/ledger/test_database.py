"""The file of a ledger: exported, edited, damaged, full, closed, or not a ledger at all."""

import json
import sqlite3
from hashlib import sha256
from pathlib import Path

import pytest

from fedcel.errors import LedgerError
from fedcel.privacy.ledger import MICRO, Ledger
from fedcel.privacy.ledger.ledger import LogEntry, WriteTransaction, audit_ledger
from tests.fedcel.privacy.ledger.charges import charge


def test_the_log_is_exported_as_it_is(ledger: Ledger, tmp_path: Path) -> None:
    """One JSON object a row, bytes in hexadecimal; an answer by its digest."""
    ledger.charge([charge("a")])
    ledger.settle([("a", b"answer")])
    ledger.export(tmp_path / "log.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(row["kind"], row["micro"]) for row in rows] == [
        ("grant", 3 * MICRO),
        ("charge", MICRO),
        ("answer", 0),
    ]
    assert rows[2]["content"] == sha256(b"answer").hexdigest()
    assert [row["link"] for row in rows] == [row.link.hex() for row in ledger.rows()]


EDITS = {
    "UPDATE log SET micro = 1 WHERE position = 2": "row 2: edited",
    "UPDATE log SET client = 'bob' WHERE position = 2": "row 2: edited",
    "UPDATE log SET delta = 0.0 WHERE position = 2": "row 2: edited",
    "UPDATE log SET link = zeroblob(32) WHERE position = 2": "row 3: edited",
    "DELETE FROM log WHERE position = 2": "row 2 to 2: missing",
    "DELETE FROM log WHERE position > 1": "client 'ann': holds (3000000, 1000000)",
    "UPDATE accounts SET spent = 0 WHERE scope = 'client'": "client 'ann': holds (3000000, 0)",
    "UPDATE accounts SET allowed = 9000000 WHERE scope = 'client'": "client 'ann': holds (9000000",
    "UPDATE accounts SET allowed = 9 WHERE scope = 'model'": "model 'v1': holds (9",
    "UPDATE answers SET answer = x'00'": "the answer to 'a' is not the one",
    "DELETE FROM answers": "the answer to 'a' is missing",
    "INSERT INTO answers VALUES ('z', x'00')": "the answer to 'z' is not the one",
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_found(tmp_path: Path, edit: str) -> None:
    """The file itself refuses edits of the log; with that switched off, `verify` finds them."""
    path = tmp_path / "ledger.db"
    with Ledger.open(path) as ledger:
        ledger.grant("ann", 3 * MICRO)
        ledger.charge([charge("a")])
        ledger.settle([("a", b"answer")])
        assert ledger.verify() == []
    db = sqlite3.connect(path, isolation_level=None)
    if "accounts" not in edit and "INSERT" not in edit:
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            db.execute(edit)
    for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        db.execute(f"DROP TRIGGER {name}")
    db.execute(edit)
    db.close()
    with Ledger.open(path) as ledger:
        assert any(EDITS[edit] in problem for problem in ledger.verify())


def test_an_overdrawn_account_is_found(ledger: Ledger) -> None:
    """A sound chain over a charge that no ledger would have booked."""
    ledger.db.execute("BEGIN IMMEDIATE")
    transaction = WriteTransaction(ledger.db)
    transaction.append(LogEntry("charge", "a", "ann", "v1", 4 * MICRO, 0.0, bytes(32)))
    transaction.append(LogEntry("charge", "a", "ann", "v1", 1, 0.0, bytes(31) + b"\1"))
    transaction.append(LogEntry("answer", "b", content=bytes(32)))
    problems = "\n".join(audit_ledger(ledger.db))
    ledger.db.execute("ROLLBACK")
    assert "spent more than the 3000000 it had" in problems
    assert "'a' was charged with two bodies" in problems
    assert "'b', which was never charged" in problems


def test_files_that_are_no_ledger_are_left_alone(tmp_path: Path) -> None:
    """Text, another program's database, a later format, a folder, a missing folder."""
    (tmp_path / "text").write_text("x" * 5000)
    foreign = sqlite3.connect(tmp_path / "other")
    foreign.execute("CREATE TABLE mine (a)")
    foreign.close()
    Ledger.open(tmp_path / "later").close()
    later = sqlite3.connect(tmp_path / "later")
    later.execute("PRAGMA user_version = 2")
    later.close()
    for name, reason in (
        ("text", "no ledger, or damaged"),
        ("other", "another program's"),
        ("later", "format is 2, this version reads 1"),
        (".", "cannot be opened"),
        ("missing/ledger", "check that its folder exists"),
    ):
        before = (tmp_path / name).read_bytes() if (tmp_path / name).is_file() else b""
        with pytest.raises(LedgerError, match=reason):
            Ledger.open(tmp_path / name)
        assert not before or (tmp_path / name).read_bytes() == before


def test_a_damaged_ledger_is_refused(tmp_path: Path) -> None:
    """Zeros over a page in the middle."""
    path = tmp_path / "ledger.db"
    with Ledger.open(path) as ledger:
        ledger.grant("ann", 900 * MICRO)
        ledger.charge([charge(str(k)) for k in range(300)])
    raw = bytearray(path.read_bytes())
    raw[5 * 4096 : 8 * 4096] = bytes(3 * 4096)
    path.write_bytes(raw)
    with pytest.raises(LedgerError, match="damaged"):
        Ledger.open(path)


def test_a_full_disk_books_nothing(ledger: Ledger) -> None:
    """The group is refused with the reason; once there is space, the ledger goes on."""
    (pages,) = ledger.db.execute("PRAGMA page_count").fetchone()
    ledger.db.execute(f"PRAGMA max_page_count = {pages}")
    ledger.grant("ann", 1000 * MICRO)
    before = ledger.balance("ann")
    with pytest.raises(LedgerError, match="free space, nothing was charged"):
        ledger.charge([charge(str(k)) for k in range(500)])
    assert ledger.balance("ann") == before
    ledger.db.execute("PRAGMA max_page_count = 100000")
    assert len(ledger.charge([charge(str(k)) for k in range(500)])) == 500


def test_a_closed_ledger_says_so(tmp_path: Path) -> None:
    """Never silently without a charge."""
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        pass
    with pytest.raises(LedgerError, match="closed"):
        ledger.charge([charge("a")])
