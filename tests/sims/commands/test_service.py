"""The commands `serve` and `ledger`: what they refuse, what they say."""

import contextlib
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clients.service.access import key_table_path, read_keys
from fedcel.errors import LedgerError
from fedcel.privacy.ledger import MICRO, Ledger
from fedcel.settings import Scalar
from sims.commands import ledger as operator
from sims.commands.main import main
from tests.fedcel.privacy.ledger.postgres import PostgresServer


def run_cli(arguments: list[object], capsys: pytest.CaptureFixture[str], status: int = 0) -> str:
    assert main([str(word) for word in arguments]) == status
    out, errors = capsys.readouterr()
    return errors if status else out


def test_keys_budgets_and_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A new client gets epsilon and a key, a known one only a key; revoked keys are gone."""
    path = tmp_path / "ledger.db"
    book = ["ledger", "keys", path, "--client", "phone"]
    first = run_cli([*book, "--epsilon", "7"], capsys)
    again = run_cli([*book, "--days", "2"], capsys)
    assert "is new and was granted epsilon 7" in first and "has epsilon 7" in again
    name = re.findall(r"key: fedcel_([0-9a-f]{16})_\S{43}\n", first)[0]
    assert "7.5 left" in run_cli(
        ["ledger", "top-up", path, "--client", "phone", "--epsilon", "0.5"], capsys
    )
    listed = run_cli(["ledger", "list", path], capsys)
    assert re.search(r"phone +7.500000 +0.000000 +7.500000", listed)
    assert listed.count("never") == 1 and name in listed
    run_cli(["ledger", "keys", path, "--revoke", name], capsys)
    assert name not in run_cli(["ledger", "list", path], capsys)
    assert "no key" in run_cli(["ledger", "keys", path, "--revoke", name], capsys, 2)
    run_cli(["ledger", "export", path, "--out", tmp_path / "log.jsonl"], capsys)
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [row["micro"] for row in rows] == [7_000_000, 500_000]
    assert "2 rows, all balances and links are right" in run_cli(["ledger", "verify", path], capsys)


def test_a_changed_ledger_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 1, and all that is wrong, of accounts and of rows."""
    import sqlite3

    path = tmp_path / "ledger.db"
    run_cli(["ledger", "keys", path, "--client", "phone"], capsys)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE accounts SET allowed = allowed + 1")
        db.execute("DROP TRIGGER log_UPDATE")
        db.execute("UPDATE log SET delta = 0.5")
    problems = run_cli(["ledger", "verify", path], capsys, 1)
    assert "changed or damaged" in problems
    assert "row 1: edited" in problems and "client 'phone': holds (100000001" in problems


def test_a_new_client_is_granted_100_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where two operators find it unknown at the same moment."""
    path, both = tmp_path / "ledger.db", threading.Barrier(2, timeout=0.3)
    list_clients = Ledger.clients

    def together(ledger: Ledger) -> object:
        balances = list_clients(ledger)
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait()
        return balances

    monkeypatch.setattr(Ledger, "clients", together)
    with ThreadPoolExecutor() as pool:
        said_twice = list(
            pool.map(lambda _: operator.issue_key(path, "phone", None, None), range(2))
        )
    monkeypatch.undo()
    assert sorted("is new" in text for text in said_twice) == [False, True]
    assert "phone has 101 left" in run_cli(
        ["ledger", "top-up", path, "--client", "phone", "--epsilon", "1"], capsys
    )


def test_a_grant_that_fails_leaves_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody was shown it; and a damaged file of keys is found before anything is granted."""
    path = tmp_path / "ledger.db"

    def fail(*_: object) -> None:
        raise LedgerError("full")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "admit", fail)
        with pytest.raises(LedgerError, match="full"):
            operator.issue_key(path, "phone", None, None)
    assert read_keys(key_table_path(path)) == []
    key_table_path(path).write_text("{}")
    with pytest.raises(ValueError, match="damaged"):
        operator.issue_key(path, "phone", None, None)
    with Ledger.open(path) as ledger:
        assert ledger.clients() == {}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["top-up", "--client", "phnoe", "--epsilon", "1"], "'phnoe' has no account"),
        (["top-up", "--client", "phnoe", "--epsilon", "1"], "did you mean 'phone'?"),
        (
            ["top-up", "--client", "phone", "--epsilon", "1e-7"],
            "epsilon is 1e-07, must be at least",
        ),
        (["top-up", "--client", "phone", "--epsilon", "-1"], "epsilon is -1"),
        (["keys", "--client", "phone", "--epsilon", "5"], "account already, with 7 left"),
        (["keys", "--client", "other", "--epsilon", "1e-7"], "epsilon is 1e-07"),
        (["keys", "--client", "a:b"], "client is 'a:b'"),
        (["keys", "--revoke", "x", "--epsilon", "5"], "--epsilon is 5, but --revoke"),
        (["keys", "--revoke", "x", "--days", "5"], "--days is 5, but --revoke"),
        (["keys", "--revoke", ""], "no key ''"),
        (["limit", "--model", "v1", "--epsilon", "5"], "--model is 'v1'"),
        (["limit", "--model", "0" * 32, "--epsilon", "nan"], "epsilon is nan"),
    ],
)
def test_what_would_have_no_effect_is_refused(
    words: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither account nor key is made or changed."""
    path = tmp_path / "ledger.db"
    run_cli(["ledger", "keys", path, "--client", "phone", "--epsilon", "7"], capsys)
    before = run_cli(["ledger", "list", path], capsys)
    assert reason in run_cli(["ledger", words[0], path, *words[1:]], capsys, 2)
    assert run_cli(["ledger", "list", path], capsys) == before
    with Ledger.open(path) as ledger:
        assert len(ledger.rows()) == 1


def test_a_model_version_is_limited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0 ends it; the last word holds."""
    path, model = tmp_path / "ledger.db", "0123456789abcdef" * 2
    words = ["ledger", "limit", path, "--model", model, "--epsilon"]
    assert "no ledger yet" in run_cli([*words, "5"], capsys, 2)
    run_cli(["ledger", "keys", path, "--client", "phone"], capsys)
    assert f"spend 2.5 on model {model}" in run_cli([*words, "2.5"], capsys)
    assert f"spend 0 on model {model}" in run_cli([*words, "0"], capsys)
    with Ledger.open(path) as ledger:
        limits = [row.entry for row in ledger.rows() if row.entry.kind == "limit"]
    assert [(entry.model, entry.micro) for entry in limits] == [(model, 2_500_000), (model, 0)]


def test_only_the_owner_reads_what_was_answered(tmp_path: Path) -> None:
    """The ledger, its log and its index, the keys and their lock."""
    path = tmp_path / "ledger.db"
    operator.issue_key(path, "phone", None, None)
    with Ledger.open(path) as ledger:
        ledger.grant("phone", MICRO)
        files = list(tmp_path.iterdir())
        assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
        assert {file.name for file in files} >= {f"ledger.db{end}" for end in ("", "-wal", "-shm")}


def test_a_service_has_a_ledger_and_settings_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RUN/budget.db where none is named; settings as `simulate` reads them."""
    calls: list[tuple[Path, dict[str, Scalar], bool]] = []

    def note(
        run: Path,
        ledger: Path,
        *_: object,
        overrides: dict[str, Scalar],
        allow_chance: bool,
        keys: Path | None,
        engine: object,
    ) -> None:
        assert keys is None
        calls.append((ledger, overrides, allow_chance))

    monkeypatch.setattr("sims.commands.web_server.run_service", note)
    assert main(["serve", str(tmp_path)]) == 0
    settings = ["--set", "privacy.epsilon=2", "--set", "privacy.mechanism=gaussian"]
    words = ["serve", str(tmp_path), "--ledger", "own.db", "--allow-chance", *settings]
    assert main(words) == 0
    assert calls == [
        (tmp_path / "budget.db", {}, False),
        (Path("own.db"), {"privacy.epsilon": 2, "privacy.mechanism": "gaussian"}, True),
    ]


URL = "postgresql://ann:s3cret@127.0.0.1:1/fedcel"


@pytest.mark.parametrize(
    ("words", "reasons", "status"),
    [
        (["ledger", "list", "absent.db"], ["no ledger yet"], 2),
        (["ledger", "keys", "l.db", "--client", "a b"], ["client is 'a b'"], 2),
        (["ledger", "keys", "l.db", "--client", "a", "--days", "-1"], ["--days is -1"], 2),
        (["ledger", "keys", "l.db", "--client", "a", "--epsilon", "nan"], ["epsilon is nan"], 2),
        (["serve", "none"], ["is not a folder"], 2),
        (["serve", "run", "--ledger", URL], ["postgresql://ann:***@127", "give --keys FILE"], 2),
        (["serve", "run", "--ledger", "redis://:s3cret@h"], ["redis://***", "must be the path"], 2),
        (["ledger", "list", URL], ["postgresql://ann:***@127", "give --keys FILE"], 2),
        (["ledger", "list", URL, "--keys", "k"], ["ann:***@127", "start the server"], 1),
        (["ledger", "verify", URL], ["ann:***@127", "start the server"], 1),
        (["ledger", "verify", "postgresql://ann:s3cret@h"], ["***", "without a database"], 2),
        (["ledger", "copy", URL, "new.db"], ["ann:***@127", "start the server"], 1),
        (["ledger", "copy", "none.db", URL], ["none.db is no ledger yet"], 2),
        (["ledger", "keys", URL, "--client", "phone"], ["give --keys FILE"], 2),
    ],
)
def test_a_ledger_that_cannot_be_used_is_refused_at_the_door(
    words: list[str],
    reasons: list[str],
    status: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With what to do, without its password, and nothing is made."""
    pytest.importorskip("psycopg", reason="the driver of PostgreSQL is not installed")
    monkeypatch.chdir(tmp_path)
    refusal = run_cli(words, capsys, status)
    assert all(reason in refusal for reason in reasons) and "s3cret" not in refusal
    assert not list(tmp_path.iterdir())


def test_a_ledger_is_copied_to_postgresql_and_its_budgets_go_on(
    postgres: PostgresServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same commands on the copy; a second copy is refused."""
    path, url, keys = tmp_path / "ledger.db", postgres.make_database(), tmp_path / "keys.json"
    run_cli(["ledger", "keys", path, "--client", "phone", "--epsilon", "7"], capsys)
    copied = run_cli(["ledger", "copy", path, url], capsys)
    assert "1 rows and 0 answers of 1 clients, granted 7, spent 0" in copied
    assert "the old one still pays" in copied
    words = ["--client", "phone", "--epsilon", "0.5"]
    assert "phone has 7.5 left" in run_cli(["ledger", "top-up", url, *words], capsys)
    assert "has epsilon 7.5" in run_cli(
        ["ledger", "keys", url, "--keys", keys, "--client", "phone"], capsys
    )
    assert re.search(
        r"phone +7.500000 +0.000000 +7.500000",
        run_cli(["ledger", "list", url, "--keys", keys], capsys),
    )
    assert "2 rows, all balances and links" in run_cli(["ledger", "verify", url], capsys)
    assert "is not empty" in run_cli(["ledger", "copy", path, url], capsys, 2)
