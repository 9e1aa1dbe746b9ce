"""A ledger in PostgreSQL: races, lost connections, killed clients, a killed server."""

import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

psycopg = pytest.importorskip("psycopg", reason="the driver of PostgreSQL is not installed")

from fedcel.errors import LedgerError, SettingsError  # noqa: E402 - after the skip
from fedcel.privacy.ledger import (  # noqa: E402
    Ledger,
    PostgresAddress,
    Receipt,
    Refusal,
    parse_ledger_address,
)
from fedcel.privacy.ledger import postgres_database as database  # noqa: E402
from fedcel.privacy.ledger.database import LedgerDatabase  # noqa: E402
from fedcel.privacy.ledger.ledger import WriteTransaction  # noqa: E402
from tests.fedcel.privacy.ledger.charges import (  # noqa: E402
    charge,
    fresh,
    pay,
    repeated,
)
from tests.fedcel.privacy.ledger.edits import make_older  # noqa: E402
from tests.fedcel.privacy.ledger.ledger_processes import (  # noqa: E402
    KILLS,
    PROCESSES,
    RACERS,
    answer_for_ever,
    crash,
    find_changed,
    forked,
    race_for_the_rest,
    read_told,
)
from tests.fedcel.privacy.ledger.postgres import UNPRIVILEGED, PostgresServer  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
BUDGET = 7
SERVER_KILLS = 3 if KILLS <= 10 else 20


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    """Return the address of a new database."""
    return postgres.make_database()


def run_statement(url: str, statement: str) -> None:
    """Run a statement on the ledger's tables, past the ledger."""
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(f"SET search_path = {database.SCHEMA_NAME}")
        db.execute(statement)


def test_the_last_micro_epsilons_are_won_by_as_many_as_they_pay_for(
    url: str, tmp_path: Path
) -> None:
    """64 racers, each with a connection of its own, in four processes."""
    assert race_for_the_rest(url, tmp_path, BUDGET) == [
        BUDGET,
        PROCESSES * RACERS - BUDGET,
        BUDGET,
        [],
    ]


def test_killed_clients_leave_no_answer_unpaid(url: str, tmp_path: Path) -> None:
    """SIGKILL at random moments, most of them within a transaction; nobody waits for the dead."""
    rows: Any = crash(tmp_path, url)
    assert len(rows) == KILLS
    for told, spent, answers, problems in rows:
        assert problems == []
        assert spent == answers
        assert told <= answers <= told + 6 * KILLS
    assert rows[-1][0] > 3  # on a busy machine few are told before each kill


@pytest.mark.long  # on a busy machine the server starts more slowly than clients wait
def test_a_killed_server_loses_no_charge_that_was_told(
    postgres: PostgresServer, url: str, tmp_path: Path
) -> None:
    """All its processes at once, under load; the clients go on by themselves after a restart."""
    answers, delays = tmp_path / "answers", random.Random(0)
    with Ledger.open(url) as ledger:
        ledger.grant("ann", 10**12)
    children = [forked(lambda name=f"{k}": answer_for_ever(url, answers, name)) for k in range(2)]
    counts = [0]
    try:
        for _ in range(SERVER_KILLS):
            time.sleep(delays.uniform(0.3, 0.6))
            postgres.kill()
            told = read_told(answers)
            postgres.start()
            with Ledger.open(url) as ledger:
                assert find_changed(ledger, told[counts[-1] :]) == []
                assert len(told) <= ledger.balance("ann").spent
            wait_for(lambda: len(read_told(answers)) > counts[-1] + 30)
            counts.append(len(read_told(answers)))
            assert all(os.waitpid(child, os.WNOHANG) == (0, 0) for child in children)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    with Ledger.open(url) as ledger:
        spent = ledger.balance("ann").spent
        told = len(read_told(answers))
        assert ledger.verify() == []
    assert told <= spent <= told + 2 * 3  # a group each; lost commits were found, not booked twice


def wait_for(is_true: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < limit
        time.sleep(0.05)


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_connection_lost_in_a_commit_books_once(
    url: str, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    """Whether the server kept the commit or never got it; nobody is told, so it is found out."""
    with Ledger.open(url) as ledger:
        ledger.grant("ann", 3)
        commit, losses = database.PostgresDatabase._commit, iter([True])

        def lose(db: database.PostgresDatabase) -> None:
            if next(losses, False):
                if is_kept:
                    commit(db)
                db._connection.close()
                raise psycopg.OperationalError("the connection was lost")
            commit(db)

        monkeypatch.setattr(database.PostgresDatabase, "_commit", lose)
        assert pay(ledger, [charge("a", epsilon=1)]) == [fresh("a", 2)]
        assert ledger.balance("ann").spent == 1
        assert [row.entry.kind for row in ledger.rows()] == ["grant", "charge"]
        assert ledger.verify() == []


def test_the_same_charge_of_another_process_is_not_taken_for_ones_own(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are the same to the last bit of their links: its answer is told, as a repeat."""
    with Ledger.open(url) as ledger, Ledger.open(url) as other:
        ledger.grant("ann", 3)
        commit, losses = database.PostgresDatabase._commit, iter([True])

        def lose(db: database.PostgresDatabase) -> None:
            if db is ledger.db and next(losses, False):
                db._connection.close()
                assert pay(other, [charge("a", epsilon=1)]) == [fresh("a", 2)]
                raise psycopg.OperationalError("the connection was lost")
            commit(db)

        monkeypatch.setattr(database.PostgresDatabase, "_commit", lose)
        assert pay(ledger, [charge("a", epsilon=1)]) == [repeated("a", 2)]
        assert ledger.verify() == []


def test_a_connection_that_the_server_ends_is_made_anew(url: str) -> None:
    """Between two transactions, and within one."""
    with Ledger.open(url) as ledger:
        ledger.grant("ann", 3)
        end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = "
        run_statement(url, f"{end}'fedcel'")
        assert pay(ledger, [charge("a", epsilon=1)]) == [fresh("a", 2)]
        attempts = []

        def work(db: LedgerDatabase) -> None:
            attempts.append(1)
            if len(attempts) == 1:
                run_statement(url, f"{end}'fedcel'")
                time.sleep(0.1)
            transaction = WriteTransaction(db)
            transaction.grant("bob", 5)
            transaction.write()

        ledger.db.transact(work, writing=True)
        assert len(attempts) == 2 and ledger.balance("bob").granted == 5


def test_a_conflict_is_tried_again(url: str) -> None:
    """The server refuses the first try with the code of a serialization failure."""
    with Ledger.open(url) as ledger:
        ledger.grant("ann", 3)
        run_statement(url, "CREATE SEQUENCE tries")  # counts on after a rollback
        run_statement(
            url,
            "CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "IF nextval('tries') < 3 THEN RAISE EXCEPTION 'conflict' USING ERRCODE = '40001'; "
            "END IF; RETURN NEW; END $$",
        )
        run_statement(
            url,
            "CREATE TRIGGER conflicts BEFORE INSERT ON log FOR EACH ROW "
            "EXECUTE FUNCTION conflict()",
        )
        assert pay(ledger, [charge("a", epsilon=1)]) == [fresh("a", 2)]
        assert ledger.balance("ann").spent == 1


def test_a_process_that_hangs_in_a_transaction_is_ended_by_the_server(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others wait no longer than that, and it books nothing afterwards that it did not see."""
    monkeypatch.setattr(database, "IDLE_SECONDS", 0.3)
    with Ledger.open(url) as slow, Ledger.open(url) as quick:
        slow.grant("ann", 1)
        is_inside, is_paid, attempts = threading.Event(), threading.Event(), []

        def hang(_: object) -> None:
            attempts.append(1)
            is_inside.set()
            if len(attempts) == 1:
                is_paid.wait(20)
            slow.db.execute("SELECT 1")

        thread = threading.Thread(target=lambda: slow.db.transact(hang, writing=True))
        thread.start()
        assert is_inside.wait(10)
        assert pay(quick, [charge("a", epsilon=1)]) == [fresh("a", 0)]
        is_paid.set()
        thread.join(20)
        assert len(attempts) == 2
        assert pay(slow, [charge("b", epsilon=1)]) == [Refusal("budget", 0)]


def test_a_server_that_is_away_is_told_and_found_again(
    postgres: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is answered meanwhile; a probe finds that it is back."""
    monkeypatch.setattr(database, "RETRY_SECONDS", 0.2)
    with Ledger.open(url) as ledger:
        ledger.grant("ann", 3)
        postgres.kill()
        try:
            with pytest.raises(LedgerError, match="start the server"):
                pay(ledger, [charge("a", epsilon=1)])
            with pytest.raises(LedgerError, match="start the server"):
                Ledger.open(url)
        finally:
            postgres.start()
        ledger.probe()
        assert pay(ledger, [charge("a", epsilon=1)]) == [fresh("a", 2)]


PASSWORD = "s3cr%23t"
"""As it stands in a URL; it means s3cr#t."""


def test_who_cannot_be_reached_is_told_without_the_password() -> None:
    """What, where, what to do; at the door, within seconds."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    with pytest.raises(LedgerError, match="start the server") as caught:
        Ledger.open(f"postgresql://ann:{PASSWORD}@127.0.0.1:{port}/fedcel?password={PASSWORD}")
    assert f"ledger postgresql://ann:***@127.0.0.1:{port}/fedcel:" in str(caught.value)
    chain = [caught.value, caught.value.__cause__, caught.value.__context__]
    assert not any("s3cr" in str(error) for error in chain)


def test_an_error_of_the_driver_that_holds_the_password_is_masked() -> None:
    """As it stands in the URL, and as it was meant."""
    address = parse_ledger_address(f"postgresql://ann:{PASSWORD}@host/fedcel?password=0ther")
    assert isinstance(address, PostgresAddress)
    masked = pytest.raises(LedgerError, match=r"\*\*\* or \*\*\* or \*\*\*")
    with masked as caught, database.explain_errors(address):
        raise psycopg.ProgrammingError(f"invalid: {PASSWORD} or s3cr#t or 0ther")
    assert "s3cr" not in str(caught.value) and "0ther" not in str(caught.value)


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("CREATE SCHEMA fedcel_ledger", "another program's"),
        (
            "CREATE SCHEMA fedcel_ledger CREATE TABLE fedcel_ledger.ledger AS SELECT 4 AS format",
            "format is 4, this version reads 3",
        ),
    ],
)
def test_other_peoples_tables_are_left_alone(url: str, statement: str, reason: str) -> None:
    """Another program's, or of a later version."""
    with psycopg.connect(url, autocommit=True) as db:
        for part in statement.replace(" CREATE TABLE", "; CREATE TABLE").split("; "):
            db.execute(part)
    with pytest.raises(LedgerError, match=reason):
        Ledger.open(url)


def test_a_database_that_would_not_keep_a_charge_is_refused(
    postgres: PostgresServer, url: str
) -> None:
    """A missing one, a read-only one, one of another encoding; commits that may be lost are not."""
    with pytest.raises(LedgerError, match="make the database first"):
        Ledger.open(postgres.url("absent"))
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
        db.execute("ALTER ROLE fedcel SET synchronous_commit = off")
    try:
        with pytest.raises(LedgerError, match="encoding is LATIN1, must be UTF8"):
            Ledger.open(postgres.url("latin"))
        with Ledger.open(url) as ledger:
            shown = ledger.db.execute("SHOW synchronous_commit")
            assert shown == [("on",)]
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("ALTER ROLE fedcel SET default_transaction_read_only = on")
        with pytest.raises(LedgerError, match="only reads"):
            Ledger.open(url)
    finally:
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("SET default_transaction_read_only = off")
            db.execute("ALTER ROLE fedcel RESET ALL")


def test_a_path_that_was_a_url_is_refused() -> None:
    """A path has lost a slash of it."""
    with pytest.raises(SettingsError, match="pass a string") as caught:
        Ledger.open(Path("postgresql://ann:s3cret@host/fedcel"))
    assert "s3cret" not in str(caught.value)


def test_an_older_ledger_is_upgraded_beside_writers(url: str) -> None:
    """Several new processes open it while an old one writes; nothing fails, nothing is lost."""
    with Ledger.open(url) as ledger:
        ledger.grant("ann", 10**6)
    make_older(url)
    ended, errors = threading.Event(), []

    def write_as_before() -> None:
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(f"SET search_path = {database.SCHEMA_NAME}")
            while not ended.is_set():
                with db.transaction():
                    db.execute(
                        "SELECT format, (SELECT coalesce(max(position), 0) FROM log) "
                        "FROM ledger FOR UPDATE"
                    )
                    db.execute("UPDATE accounts SET spent = spent WHERE name = 'ann'")

    def open_new() -> None:
        try:
            with Ledger.open(url) as ledger:
                assert isinstance(pay(ledger, [charge("a", epsilon=1)])[0], Receipt)
        except Exception as error:
            errors.append(error)

    writers = [threading.Thread(target=write_as_before) for _ in range(3)]
    openers = [threading.Thread(target=open_new) for _ in range(3)]
    for thread in writers:
        thread.start()
    time.sleep(0.2)
    for thread in openers:
        thread.start()
    for thread in openers:
        thread.join(30)
    ended.set()
    for thread in writers:
        thread.join(30)
    assert errors == []
    with Ledger.open(url) as ledger:
        assert ledger.verify() == [] and ledger.balance("ann").spent == 1


def test_who_does_not_own_an_older_ledger_is_told(url: str) -> None:
    """Rights on the tables are not enough to change them."""
    with Ledger.open(url) as ledger:
        ledger.grant("ann", 1)
    make_older(url)
    run_statement(url, "CREATE ROLE tenant LOGIN")
    run_statement(url, f"GRANT USAGE ON SCHEMA {database.SCHEMA_NAME} TO tenant")
    run_statement(url, f"GRANT ALL ON ALL TABLES IN SCHEMA {database.SCHEMA_NAME} TO tenant")
    with pytest.raises(LedgerError, match="only their owner can bring"):
        Ledger.open(url.replace("fedcel@", "tenant@"))
    with Ledger.open(url) as ledger:
        assert ledger.verify() == []


@pytest.fixture
def standby(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A standby of the server, which streams from it."""
    with TemporaryDirectory(
        prefix="fedcel-", dir=postgres.folder.parent, ignore_cleanup_errors=True
    ) as folder:
        if os.geteuid() == 0:
            os.chown(folder, UNPRIVILEGED, UNPRIVILEGED)
        server = PostgresServer(postgres.programs, Path(folder))
        words = ["-h", postgres.folder, "-U", "fedcel", "-R", "--checkpoint=fast", "--no-sync"]
        copy = server.run(postgres.programs / "pg_basebackup", "-D", server.folder / "data", *words)
        assert copy.wait() == 0, (server.folder / "log").read_text()
        server.start()
        try:
            yield server
        finally:
            server.kill()
            run_statement(postgres.url("postgres"), "ALTER SYSTEM RESET synchronous_standby_names")
            run_statement(postgres.url("postgres"), "SELECT pg_reload_conf()")


def test_a_standby_that_may_forget_answers_is_told(
    url: str, postgres: PostgresServer, standby: PostgresServer
) -> None:
    """An asynchronous one. A synchronous one has every charge that was told when it takes over."""
    with Ledger.open(url) as ledger:
        ledger.grant("ann", 9)
        assert "its standby learns of charges after" in str(ledger.find_risk())
        copied = url.replace(str(postgres.folder), str(standby.folder))
        run_statement(postgres.url("postgres"), "ALTER SYSTEM SET synchronous_standby_names = '*'")
        run_statement(postgres.url("postgres"), "SELECT pg_reload_conf()")
        while ledger.find_risk():
            time.sleep(0.05)
        for name in "abcd":
            assert len(pay(ledger, [charge(name, epsilon=1)])) == 1
        postgres.kill()
    run_statement(standby.url("postgres"), "SELECT pg_promote()")
    with Ledger.open(copied) as ledger:
        assert ledger.balance("ann").spent == 4 and ledger.verify() == []
    postgres.start()
