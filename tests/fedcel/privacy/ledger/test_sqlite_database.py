"""The file of a ledger: damaged, full, or not a ledger at all."""

import sqlite3
from pathlib import Path

import pytest

from fedcel.errors import LedgerError
from fedcel.privacy.ledger import MICRO, Ledger
from fedcel.privacy.ledger import sqlite_database as database
from tests.fedcel.privacy.ledger.charges import charge, fresh, pay


def test_files_that_are_no_ledger_are_left_alone(tmp_path: Path) -> None:
    """Text, another program's database, a later format, a folder, a missing folder."""
    (tmp_path / "text").write_text("x" * 5000)
    foreign = sqlite3.connect(tmp_path / "other")
    foreign.execute("CREATE TABLE mine (a)")
    foreign.close()
    Ledger.open(tmp_path / "later").close()
    later = sqlite3.connect(tmp_path / "later")
    later.execute("PRAGMA user_version = 4")
    later.close()
    for name, reason in (
        ("text", "no ledger, or damaged"),
        ("other", "another program's"),
        ("later", "format is 4, this version reads 3"),
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
        pay(ledger, [charge(str(k)) for k in range(300)])
    raw = bytearray(path.read_bytes())
    raw[3 * 2048 : 8 * 2048] = bytes(5 * 2048)
    path.write_bytes(raw)
    with pytest.raises(LedgerError, match="damaged"):
        Ledger.open(path)


def test_a_full_disk_books_nothing(ledger_file: Ledger) -> None:
    """The group is refused with the reason; once there is space, the ledger goes on."""
    ((pages,),) = ledger_file.db.execute("PRAGMA page_count")
    ledger_file.db.execute(f"PRAGMA max_page_count = {pages}")
    ledger_file.grant("ann", 1000 * MICRO)
    before = ledger_file.balance("ann")
    with pytest.raises(LedgerError, match="free space, nothing was charged"):
        pay(ledger_file, [charge(str(k)) for k in range(500)])
    assert ledger_file.balance("ann") == before
    ledger_file.db.execute("PRAGMA max_page_count = 100000")
    assert len(pay(ledger_file, [charge(str(k)) for k in range(500)])) == 500


@pytest.mark.parametrize("is_worked_in", [True, False])
def test_the_log_beside_the_file_stays_small_under_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_worked_in: bool
) -> None:
    """While commits go on, what they wrote gets into the file; without that the log grows."""
    monkeypatch.setattr(database, "CHECKPOINT_ROWS", 200)
    if not is_worked_in:
        monkeypatch.setattr(database.SqliteDatabase, "_work_in_log", lambda _: None)
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        ledger.grant("ann", 10**9)
        for turn in range(200):
            charges = [charge(f"{turn}-{k}", epsilon=1)._replace(delta=0.0) for k in range(10)]
            assert len(pay(ledger, charges)) == 10
        log_bytes = (tmp_path / "ledger.db-wal").stat().st_size
        assert (log_bytes < 4 * 2**20) is is_worked_in
        assert ledger.verify() == [] and ledger.balance("ann").spent == 2000


def test_a_file_that_is_no_longer_there_is_not_charged(tmp_path: Path) -> None:
    """Moved away, or replaced by another ledger; once it is back, it goes on."""
    path, aside = tmp_path / "ledger.db", tmp_path / "aside.db"
    with Ledger.open(aside) as other:
        other.grant("ann", MICRO)
    with Ledger.open(path) as ledger:
        ledger.grant("ann", MICRO)
        path.rename(tmp_path / "moved.db")
        with pytest.raises(LedgerError, match="moved, deleted or replaced"):
            pay(ledger, [charge("a", epsilon=1)])
        (tmp_path / "moved.db").rename(path)
        assert pay(ledger, [charge("a", epsilon=1)]) == [fresh("a", MICRO - 1)]
        aside.replace(path)
        with pytest.raises(LedgerError, match="the -wal and -shm beside it"):
            pay(ledger, [charge("b", epsilon=1)])


def test_each_commit_is_flushed_to_the_disk(ledger_file: Ledger) -> None:
    """SQLite's own word for it: 2 is FULL."""
    assert ledger_file.db.execute("PRAGMA synchronous") == [(2,)]
    assert ledger_file.db.execute("PRAGMA journal_mode") == [("wal",)]


def test_the_working_folder_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path stays the file that it was."""
    monkeypatch.chdir(tmp_path)
    with Ledger.open("ledger.db") as ledger:
        monkeypatch.chdir(tmp_path.parent)
        ledger.grant("ann", MICRO)
        assert pay(ledger, [charge("a", epsilon=1)]) == [fresh("a", MICRO - 1)]
