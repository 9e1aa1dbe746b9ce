"""The ledger: what is charged, what is not, what is refused, and that an edit is found."""

import json
import sqlite3
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcel.errors import LedgerError
from fedcel.privacy.ledger import (
    MICRO,
    Balance,
    Charge,
    Ledger,
    Receipt,
    Refusal,
)
from fedcel.privacy.ledger_audit import audit
from fedcel.privacy.ledger_books import Books
from fedcel.privacy.ledger_log import Entry


def charge(
    request: str, message: str = "", client: str = "ann", model: str = "v1", epsilon: int = MICRO
) -> Charge:
    """Return a charge for a message, by default one of its own."""
    digest = sha256((message or request).encode()).digest()
    return Charge(request, client, model, epsilon, 2.0**-12, digest)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Yield a new ledger in which ann has 3 epsilon, sound at the end."""
    with Ledger.open(tmp_path / "ledger.db") as opened:
        opened.grant("ann", 3 * MICRO)
        yield opened
        assert opened.verify() == []


def test_a_charge_by_hand(ledger: Ledger) -> None:
    """Charged, settled, told for free to a retry and to the same message under another id."""
    assert ledger.charge([charge("a", "x")]) == [Receipt("a", None, True, 2 * MICRO)]
    ledger.settle([("a", b"answer")])
    assert ledger.charge([charge("a", "x"), charge("b", "x")]) == [
        Receipt("a", b"answer", False, 2 * MICRO),
        Receipt("b", b"answer", False, 2 * MICRO),
    ]
    assert ledger.balance("ann") == Balance(3 * MICRO, MICRO, 2 * MICRO, 2.0**-12)


def test_other_clients_and_versions_pay_for_the_same_message(ledger: Ledger) -> None:
    """Answers are remembered for one client and one model version."""
    ledger.grant("bob", MICRO)
    ledger.charge([charge("a", "x")])
    ledger.settle([("a", b"answer")])
    others = [charge("b", "x", client="bob"), charge("c", "x", model="v0")]
    assert ledger.charge([*others, charge("d", "x", model="v2")]) == [
        Receipt("b", None, True, 0),
        Receipt("c", None, True, MICRO),
        Receipt("d", None, True, 0),
    ]
    assert ledger.clients() == {
        "ann": Balance(3 * MICRO, 3 * MICRO, 0, 3 * 2.0**-12),
        "bob": Balance(MICRO, MICRO, 0, 2.0**-12),
    }


def test_the_same_id_with_another_body_is_refused(ledger: Ledger) -> None:
    """Whatever differs: message, version, client; answered or not."""
    ledger.grant("bob", MICRO)
    ledger.charge([charge("a", "x")])
    others = [charge("a", "y"), charge("a", "x", model="v2")]
    for _ in range(2):
        assert ledger.charge(others) == [Refusal("a", "replayed", 2 * MICRO)] * 2
        assert ledger.charge([charge("a", "x", client="bob")]) == [Refusal("a", "replayed", MICRO)]
        ledger.settle([("a", b"answer")])


def test_a_charge_without_an_answer_is_paid_again(ledger: Ledger) -> None:
    """Nobody knows whether the first answer was seen; the first stored one is kept."""
    for left in (2, 1):
        assert ledger.charge([charge("a")]) == [Receipt("a", None, True, left * MICRO)]
    ledger.settle([("a", b"one"), ("a", b"two")])
    assert ledger.charge([charge("a")]) == [Receipt("a", b"one", False, MICRO)]


def test_the_budget_ends_exactly(ledger: Ledger) -> None:
    """3 epsilon pay for three in one group, not a micro-epsilon more; answers stay free."""
    found = ledger.charge([charge(str(k)) for k in range(4)])
    assert found[3] == Refusal("3", "budget", 0)
    assert [got.left for got in found] == [2 * MICRO, MICRO, 0, 0]
    ledger.settle([("0", b"zero")])
    assert ledger.charge([charge("0"), charge("4", epsilon=1)]) == [
        Receipt("0", b"zero", False, 0),
        Refusal("4", "budget", 0),
    ]
    ledger.grant("ann", 1)
    assert ledger.charge([charge("4", epsilon=1)]) == [Receipt("4", None, True, 0)]


def test_a_model_version_has_a_budget_over_all_clients(ledger: Ledger) -> None:
    """What was spent before the limit counts; lowered below it, nothing is left."""
    ledger.grant("bob", 3 * MICRO)
    ledger.charge([charge("a")])
    ledger.limit("v1", 2 * MICRO)
    found = ledger.charge([charge("b", client="bob"), charge("c"), charge("d", model="v2")])
    assert found[1] == Refusal("c", "model-budget", 0)
    assert isinstance(found[0], Receipt) and isinstance(found[2], Receipt)
    ledger.limit("v1", MICRO)
    assert ledger.charge([charge("e")]) == [Refusal("e", "model-budget", -MICRO)]


def test_strangers_are_refused(ledger: Ledger) -> None:
    """Known is who was granted something, be it nothing."""
    assert ledger.charge([charge("a", client="eve")]) == [Refusal("a", "unknown-client", 0)]
    assert ledger.balance("eve") == Balance(0, 0, 0, 0.0)
    ledger.grant("eve", 0)
    assert ledger.charge([charge("a", client="eve")]) == [Refusal("a", "budget", 0)]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (charge("a", epsilon=0), "epsilon is 0 micro"),
        (charge("a")._replace(delta=1.0), "delta is 1.0"),
        (charge("a")._replace(delta=float("nan")), "delta is nan"),
        (charge("a")._replace(message=b"short"), "holds 5 bytes"),
        (charge("", "x"), "must not be empty"),
    ],
)
def test_a_malformed_charge_stops_its_group(ledger: Ledger, bad: Charge, message: str) -> None:
    """Nothing of the group is booked."""
    with pytest.raises(ValueError, match=message):
        ledger.charge([charge("fine"), bad])
    assert ledger.balance("ann").spent == 0


def test_what_was_never_charged_is_not_settled(ledger: Ledger) -> None:
    """Nothing of the group is stored."""
    ledger.charge([charge("a")])
    with pytest.raises(ValueError, match="'b' was never charged"):
        ledger.settle([("a", b"1"), ("b", b"2")])
    assert ledger.charge([charge("a")])[0].left == MICRO


@pytest.mark.parametrize("micro", [-1, 2**62])
def test_impossible_budgets_are_refused(ledger: Ledger, micro: int) -> None:
    """Below 0, or more than the file can count."""
    for refused in (ledger.grant, ledger.limit):
        with pytest.raises(ValueError, match="budget is"):
            refused("ann", micro)
    with pytest.raises(ValueError, match="budget is"):
        ledger.grant("ann", 2**62 - 2)


asks = st.tuples(st.sampled_from("abcdef"), st.sampled_from("xyz"), st.integers(1, 4))


@settings(max_examples=40)
@given(st.lists(st.tuples(st.lists(asks, max_size=4), st.booleans()), max_size=8))
def test_any_history_is_what_plain_arithmetic_makes_of_it(
    tmp_path_factory: pytest.TempPathFactory,
    groups: list[tuple[list[tuple[str, str, int]], bool]],
) -> None:
    """Against dictionaries: spent, answers and refusals of any order of groups."""
    bodies: dict[str, str] = {}
    answers: dict[str, bytes] = {}
    spent, given = 0, 12
    with Ledger.open(tmp_path_factory.mktemp("any") / "ledger.db") as ledger:
        ledger.grant("ann", given)
        for group, settled in groups:
            paid = []
            found = ledger.charge([charge(r, m, epsilon=e) for r, m, e in group])
            for (request, message, epsilon), got in zip(group, found, strict=True):
                if bodies.get(request, message) != message:
                    want: Receipt | Refusal = Refusal(request, "replayed", given - spent)
                elif message in answers:
                    want = Receipt(request, answers[message], False, given - spent)
                elif spent + epsilon > given:
                    want = Refusal(request, "budget", given - spent)
                else:
                    bodies[request] = message
                    spent += epsilon
                    paid.append((request, message))
                    want = Receipt(request, None, True, given - spent)
                assert got == want
            if settled:
                ledger.settle([(r, f"{r}{spent}".encode()) for r, _ in paid])
                first = {m: r for r, m in reversed(paid)}
                answers |= {m: f"{r}{spent}".encode() for m, r in first.items()}
        assert ledger.balance("ann")[:3] == (given, spent, given - spent)
        assert ledger.verify() == []


def test_the_log_is_exported_as_it_is(ledger: Ledger, tmp_path: Path) -> None:
    """One JSON object a row, bytes in hexadecimal; an answer by its digest."""
    ledger.charge([charge("a")])
    ledger.settle([("a", b"answer")])
    ledger.export(tmp_path / "log.jsonl")
    found = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(row["kind"], row["micro"]) for row in found] == [
        ("grant", 3 * MICRO),
        ("charge", MICRO),
        ("answer", 0),
    ]
    assert found[2]["content"] == sha256(b"answer").hexdigest()
    assert [row["link"] for row in found] == [row.link.hex() for row in ledger.rows()]


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
    books = Books(ledger.db)
    books.append(Entry("charge", "a", "ann", "v1", 4 * MICRO, 0.0, bytes(32)))
    books.append(Entry("charge", "a", "ann", "v1", 1, 0.0, bytes(31) + b"\1"))
    books.append(Entry("answer", "b", content=bytes(32)))
    found = "\n".join(audit(ledger.db))
    ledger.db.execute("ROLLBACK")
    assert "spent more than the 3000000 it had" in found
    assert "'a' was charged with two bodies" in found
    assert "'b', which was never charged" in found


def test_files_that_are_no_ledger_are_left_alone(tmp_path: Path) -> None:
    """Text, another program's database, a later format, a folder, a missing folder."""
    (tmp_path / "text").write_text("x" * 5000)
    other = sqlite3.connect(tmp_path / "other")
    other.execute("CREATE TABLE mine (a)")
    other.close()
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


def test_deltas_add_up_to_one_percent_at_most(ledger: Ledger) -> None:
    """Also within one group, and after a new start of the process; epsilon is left."""
    ledger.grant("ann", 10 * MICRO)
    asked = [
        charge(f"d{k}")._replace(epsilon=1, delta=0.004, message=bytes([k]) * 32) for k in range(3)
    ]
    one, two, three = ledger.charge(asked)
    assert isinstance(one, Receipt) and isinstance(two, Receipt)
    assert three == Refusal("d2", "delta", two.left)
    assert ledger.balance("ann").delta == pytest.approx(0.008)
    (late,) = ledger.charge([asked[2]])
    assert isinstance(late, Refusal) and late.reason == "delta"
    (pure,) = ledger.charge([asked[2]._replace(delta=0.0)])
    assert isinstance(pure, Receipt)


def test_an_unknown_client_is_admitted_once(ledger: Ledger) -> None:
    """Its budget is granted in the same transaction that finds it unknown."""
    assert ledger.admit("new", 5) and not ledger.admit("new", 5)
    assert ledger.balance("new").granted == 5
    assert ledger.knows("new") and not ledger.knows("newer")
