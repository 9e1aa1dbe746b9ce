"""The -wal and -shm of a ledger in use, removed or replaced: between processes, with charges."""

import os
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fedcel.errors import LedgerError
from fedcel.privacy.ledger import Ledger, Receipt
from fedcel.privacy.ledger import sqlite_database as database
from tests.fedcel.privacy.ledger.charges import charge, fresh, pay
from tests.fedcel.privacy.ledger.ledger_processes import (
    answer_for_ever,
    find_changed,
    forked,
    read_told,
)
from tests.fedcel.privacy.ledger.ledger_processes import (
    charge as ask,
)

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
BUDGET = 10**12


def answer_until_refused(path: Path, answers: Path, name: str) -> None:
    """Charge and tell answers until the ledger refuses, then close it."""
    with suppress(LedgerError):
        answer_for_ever(path, answers, name)


def ask_again(path: Path, answers: Path) -> None:
    """Open the ledger, ask for what the first process was told, and tell it again."""
    with Ledger.open(path) as ledger:
        requests = [line.split()[0].decode() for line in read_told(answers)]
        drawn = [f"{request} other\n".encode() for request in requests]
        replies = ledger.charge([ask(request) for request in requests], drawn)
        with answers.open("ab") as file:
            file.writelines(reply.answer for reply in replies if isinstance(reply, Receipt))


def remove(path: Path, endings: tuple[str, ...]) -> None:
    """Remove files beside a ledger."""
    for ending in endings:
        path.with_name(path.name + ending).unlink()


@pytest.mark.parametrize("endings", [("-wal", "-shm"), ("-wal",), ("-shm",)])
def test_a_log_removed_under_a_service_loses_no_answer(
    tmp_path: Path, endings: tuple[str, ...]
) -> None:
    """A second one cannot start beside it; the first stops, and what it told is in the file."""
    path, answers = tmp_path / "ledger.db", tmp_path / "answers"
    with Ledger.open(path) as ledger:
        ledger.grant("ann", BUDGET)
    first = forked(lambda: answer_until_refused(path, answers, "first"))
    limit = time.monotonic() + 30
    while len(read_told(answers)) < 30 and time.monotonic() < limit:
        time.sleep(0.01)
    remove(path, endings)
    second = forked(lambda: ask_again(path, answers))
    assert [os.waitpid(child, 0)[1] for child in (first, second)] == [0, 0]
    told = read_told(answers)
    by_request: dict[bytes, set[bytes]] = {}
    for line in told:
        by_request.setdefault(line.split()[0], set()).add(line)
    assert [lines for lines in by_request.values() if len(lines) > 1] == []
    with Ledger.open(path) as ledger:
        assert ledger.balance("ann").spent >= len(by_request) >= 30
        assert find_changed(ledger, told) == [] and ledger.verify() == []


@pytest.mark.parametrize("is_replaced", [False, True])
def test_nothing_is_charged_beside_a_lost_log(tmp_path: Path, is_replaced: bool) -> None:
    """Refused before anything is written; the end of its only user mends it."""
    path = tmp_path / "ledger.db"
    with Ledger.open(path) as ledger:
        ledger.grant("ann", 3)
        assert pay(ledger, [charge("a", epsilon=1)]) == [fresh("a", 2)]
        remove(path, ("-wal", "-shm"))
        if is_replaced:
            for ending in ("-wal", "-shm"):
                path.with_name(path.name + ending).touch()
        with pytest.raises(LedgerError, match="the -wal or -shm beside it was moved"):
            pay(ledger, [charge("b", epsilon=1)])
        with pytest.raises(LedgerError, match="the -wal or -shm beside it was moved"):
            ledger.probe()
    with Ledger.open(path) as ledger:
        assert ledger.balance("ann").spent == 1 and ledger.verify() == []


def test_who_opens_a_ledger_in_use_without_its_log_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was charged there is not in the file; a link to the file has the same log."""
    monkeypatch.setattr(database, "BEGIN_SECONDS", 0.1)
    path, link = tmp_path / "ledger.db", tmp_path / "link.db"
    link.symlink_to(path)
    with Ledger.open(link) as ledger:
        ledger.grant("ann", 3)
        Ledger.open(path).close()
        remove(path, ("-wal", "-shm"))
        with pytest.raises(LedgerError, match="the -wal or -shm beside it was removed"):
            Ledger.open(path)
    with Ledger.open(path) as ledger:
        assert ledger.balance("ann").granted == 3


def test_a_charge_is_not_told_where_its_log_is_lost_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look before the charge and its end."""
    path = tmp_path / "ledger.db"
    with Ledger.open(path) as ledger:
        ledger.grant("ann", 3)
        work_in = database.SqliteDatabase._work_in_log

        def lose(db: database.SqliteDatabase) -> None:
            remove(path, ("-wal", "-shm"))
            work_in(db)

        monkeypatch.setattr(database.SqliteDatabase, "_work_in_log", lose)
        with pytest.raises(LedgerError, match="the -wal or -shm beside it was moved"):
            pay(ledger, [charge("a", epsilon=1)])
