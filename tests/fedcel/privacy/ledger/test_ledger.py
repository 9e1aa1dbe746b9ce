"""The ledger's contract, kept by each database: what is charged, refused, and found wrong."""

import json
import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedcel.errors import LedgerError, SettingsError
from fedcel.privacy.ledger import MICRO, Balance, Charge, Ledger, Receipt, Refusal
from fedcel.privacy.ledger.database import LedgerDatabase
from fedcel.privacy.ledger.ledger import LogEntry, WriteTransaction, audit_ledger, link_entry
from tests.fedcel.privacy.ledger.charges import charge, fresh, pay, repeated
from tests.fedcel.privacy.ledger.edits import edit_tables, make_older


def test_a_charge_by_hand(ledger: Ledger) -> None:
    """Charged, told for free to a retry and to the same message under another id."""
    assert pay(ledger, [charge("a", "x")]) == [fresh("a", 2 * MICRO)]
    assert ledger.charge([charge("a", "x"), charge("b", "x")], [b"other", b"answers"]) == [
        repeated("a", 2 * MICRO),
        repeated("a", 2 * MICRO),
    ]
    assert ledger.balance("ann") == Balance(3 * MICRO, MICRO, 2 * MICRO, 2.0**-12)


def test_other_clients_and_versions_pay_for_the_same_message(ledger: Ledger) -> None:
    """Answers are remembered for one client and one model version."""
    ledger.grant("bob", MICRO)
    pay(ledger, [charge("a", "x")])
    foreign = [charge("b", "x", client="bob"), charge("c", "x", model="v0")]
    assert pay(ledger, [*foreign, charge("d", "x", model="v2")]) == [
        fresh("b", 0),
        fresh("c", MICRO),
        fresh("d", 0),
    ]
    assert ledger.clients() == {
        "ann": Balance(3 * MICRO, 3 * MICRO, 0, 3 * 2.0**-12),
        "bob": Balance(MICRO, MICRO, 0, 2.0**-12),
    }


def test_the_same_id_with_another_body_is_refused(ledger: Ledger) -> None:
    """Whatever differs: message, version, client."""
    ledger.grant("bob", MICRO)
    pay(ledger, [charge("a", "x")])
    changed = [charge("a", "y"), charge("a", "x", model="v2")]
    assert pay(ledger, changed) == [Refusal("replayed", 2 * MICRO)] * 2
    assert pay(ledger, [charge("a", "x", client="bob")]) == [Refusal("replayed", MICRO)]


def test_a_charge_without_an_answer_is_paid_again(ledger: Ledger) -> None:
    """As older versions could leave one: nobody knows whether its answer was seen."""

    def charge_alone(db: LedgerDatabase) -> None:
        transaction = WriteTransaction(db)
        transaction.append(LogEntry("charge", *charge("a")))
        transaction.write()

    ledger.db.transact(charge_alone, writing=True)
    assert ledger.balance("ann").remaining == 2 * MICRO
    assert pay(ledger, [charge("a", "another message")]) == [Refusal("replayed", 2 * MICRO)]
    assert pay(ledger, [charge("a")]) == [fresh("a", MICRO)]
    assert pay(ledger, [charge("a"), charge("b", "a")]) == [repeated("a", MICRO)] * 2
    assert ledger.verify() == []


def test_a_model_version_has_a_budget_over_all_clients(ledger: Ledger) -> None:
    """What was spent before the limit counts; lowered below it, nothing is left."""
    ledger.grant("bob", 3 * MICRO)
    pay(ledger, [charge("a")])
    ledger.limit("v1", 2 * MICRO)
    replies = pay(ledger, [charge("b", client="bob"), charge("c"), charge("d", model="v2")])
    assert replies[1] == Refusal("model-budget", 0)
    assert isinstance(replies[0], Receipt) and isinstance(replies[2], Receipt)
    ledger.limit("v1", MICRO)
    assert pay(ledger, [charge("e")]) == [Refusal("model-budget", -MICRO)]


def test_a_probe_changes_nothing(ledger: Ledger) -> None:
    """It writes, and another connection goes on beside it."""
    with Ledger.open(ledger.address) as other:
        before = ledger.rows()
        ledger.probe()
        other.probe()
        assert other.rows() == before


def test_strangers_are_refused(ledger: Ledger) -> None:
    """Known is who was granted something, be it nothing."""
    assert pay(ledger, [charge("a", client="eve")]) == [Refusal("unknown-client", 0)]
    assert ledger.balance("eve") == Balance(0, 0, 0, 0.0)
    ledger.grant("eve", 0)
    assert pay(ledger, [charge("a", client="eve")]) == [Refusal("budget", 0)]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (charge("a", epsilon=0), "epsilon is 0 micro"),
        (charge("a")._replace(delta=1.0), "delta is 1.0"),
        (charge("a")._replace(delta=float("nan")), "delta is nan"),
        (charge("a")._replace(message=b"short"), "holds 5 bytes"),
        (charge("", "x"), "must not be empty"),
        (charge("a\0"), "without NUL"),
        (charge("a", client="\ud800"), "that UTF-8 can write"),
        (charge("a")._replace(epsilon=1.5), "epsilon is 1.5, must be a whole number"),
        (charge("a")._replace(epsilon="4"), "epsilon is '4', must be a whole number"),
        (charge("a", epsilon=2**62), "epsilon is 4611686018427387904 micro"),
        (charge("a")._replace(delta="0.5"), "delta is '0.5'"),
    ],
)
def test_a_malformed_charge_stops_its_group(ledger: Ledger, bad: Charge, message: str) -> None:
    """Nothing of the group is booked."""
    with pytest.raises(ValueError, match=message):
        pay(ledger, [charge("fine"), bad])
    assert ledger.balance("ann").spent == 0


def test_numbers_of_any_kind_are_booked_as_plain_ones(ledger: Ledger) -> None:
    """NumPy's, and a negative zero, which no database keeps: its row would read as edited."""
    odd = charge("a")._replace(epsilon=np.int64(5), delta=-0.0)
    assert pay(ledger, [odd]) == [fresh("a", 3 * MICRO - 5)]
    ledger.grant("ann", np.int32(5))
    assert pay(ledger, [charge("b")._replace(delta=np.float32(0.001))]) == [fresh("b", 2 * MICRO)]
    assert ledger.verify() == []


@pytest.mark.parametrize("name", ["", "a\0", "\ud800"])
def test_names_that_no_database_keeps_are_refused(ledger: Ledger, name: str) -> None:
    """Of clients and of models, before anything is written."""
    for method in (ledger.grant, ledger.admit, ledger.limit):
        with pytest.raises(ValueError, match="(client|model) is "):
            method(name, 5)


def test_no_number_of_clients_makes_a_model_spend_more_than_can_be_counted(ledger: Ledger) -> None:
    """Each has a budget of nearly 2^62; the third charge would not fit into 64 bits."""
    for client in ("bob", "cat", "dan"):
        ledger.grant(client, 2**62 - 1)
    price = 2**61 + 2**60
    replies = pay(ledger, [charge(name, client=name, epsilon=price) for name in ("bob", "cat")])
    assert isinstance(replies[0], Receipt)
    assert replies[1] == Refusal("model-budget", 2**60)


def test_a_group_may_be_long(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part of it sees what the parts before it booked."""
    monkeypatch.setattr("fedcel.privacy.ledger.ledger.MAX_ROWS", 2)
    group = [charge("a"), charge("b"), charge("c", "b"), charge("a", "x"), charge("d")]
    assert pay(ledger, [*group, charge("e")]) == [
        fresh("a", 2 * MICRO),
        fresh("b", MICRO),
        repeated("b", MICRO),
        Refusal("replayed", MICRO),
        fresh("d", 0),
        Refusal("budget", 0),
    ]


def test_one_answer_a_charge(ledger: Ledger) -> None:
    """Nothing of the group is booked."""
    with pytest.raises(ValueError, match="answers are 1, must be 2"):
        ledger.charge([charge("a"), charge("b")], [b"one"])
    assert ledger.balance("ann").spent == 0


@pytest.mark.parametrize("micro", [-1, 2**62])
def test_impossible_budgets_are_refused(ledger: Ledger, micro: int) -> None:
    """Below 0, or more than the file can count."""
    for method in (ledger.grant, ledger.limit):
        with pytest.raises(ValueError, match="budget is"):
            method("ann", micro)
    with pytest.raises(ValueError, match="budget is"):
        ledger.grant("ann", 2**62 - 2)


requests = st.tuples(st.sampled_from("abcdef"), st.sampled_from("xyz"), st.integers(1, 4))


@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # it makes a new ledger each time
)
@given(st.lists(st.lists(requests, max_size=4), max_size=8))
def test_any_history_is_what_plain_arithmetic_makes_of_it(
    new_address: Callable[[], str], groups: list[list[tuple[str, str, int]]]
) -> None:
    """Against dictionaries: spent, answers and refusals of any order of groups."""
    bodies: dict[str, str] = {}
    answers: dict[str, bytes] = {}
    spent, budget = 0, 12
    with Ledger.open(new_address()) as ledger:
        ledger.grant("ann", budget)
        for turn, group in enumerate(groups):
            drawn = [f"{turn}-{place}".encode() for place in range(len(group))]
            replies = ledger.charge([charge(r, m, epsilon=e) for r, m, e in group], drawn)
            for (request, message, epsilon), answer, reply in zip(
                group, drawn, replies, strict=True
            ):
                if bodies.get(request, message) != message:
                    expected: Receipt | Refusal = Refusal("replayed", budget - spent)
                elif message in answers:
                    stored = answers[message]
                    expected = Receipt(stored, is_fresh=False, remaining=budget - spent)
                elif spent + epsilon > budget:
                    expected = Refusal("budget", budget - spent)
                else:
                    bodies[request], answers[message] = message, answer
                    spent += epsilon
                    expected = Receipt(answer, is_fresh=True, remaining=budget - spent)
                assert reply == expected
        assert ledger.balance("ann")[:3] == (budget, spent, budget - spent)
        assert ledger.verify() == []


def test_deltas_add_up_to_one_percent_at_most(ledger: Ledger) -> None:
    """Also within one group, and after a new start of the process; epsilon is left."""
    ledger.grant("ann", 10 * MICRO)
    charges = [
        charge(f"d{k}")._replace(epsilon=1, delta=0.004, message=bytes([k]) * 32) for k in range(3)
    ]
    first, second, third = pay(ledger, charges)
    assert isinstance(first, Receipt) and isinstance(second, Receipt)
    assert third == Refusal("delta", second.remaining)
    assert ledger.balance("ann").delta == pytest.approx(0.008)
    (late,) = pay(ledger, [charges[2]])
    assert isinstance(late, Refusal) and late.reason == "delta"
    (pure,) = pay(ledger, [charges[2]._replace(delta=0.0)])
    assert isinstance(pure, Receipt)


def test_an_unknown_client_is_admitted_once(ledger: Ledger) -> None:
    """Its budget is granted in the same transaction that finds it unknown."""
    assert ledger.admit("new", 5) and not ledger.admit("new", 5)
    assert ledger.balance("new").granted == 5
    assert list(ledger.clients()) == ["ann", "new"]


def test_two_connections_see_each_other(ledger: Ledger) -> None:
    """Answers, charges and budgets of one are those of the other at once."""
    with Ledger.open(ledger.address) as other:
        pay(ledger, [charge("a")])
        assert pay(other, [charge("a")]) == [repeated("a", 2 * MICRO)]
        assert pay(other, [charge("b"), charge("c"), charge("d")])[2] == Refusal("budget", 0)
        assert pay(ledger, [charge("e", epsilon=1)]) == [Refusal("budget", 0)]
        assert ledger.rows() == other.rows()


def test_the_log_is_exported_as_it_is(ledger: Ledger, tmp_path: Path) -> None:
    """One JSON object a row, bytes in hexadecimal; answers by their digests."""
    ledger.charge([charge("a")], [b"answer"])
    ledger.export(tmp_path / "log.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(row["kind"], row["micro"]) for row in rows] == [
        ("grant", 3 * MICRO),
        ("charge", MICRO),
    ]
    assert [row["answer"] for row in rows] == [None, sha256(b"answer").hexdigest()]
    assert [row["link"] for row in rows] == [row.link.hex() for row in ledger.rows()]


def test_a_log_does_not_replace_its_own_ledger(tmp_path: Path) -> None:
    """Budgets and charges would be gone; by another name of the file, too."""
    path = tmp_path / "ledger.db"
    with Ledger.open(path) as ledger:
        ledger.grant("ann", MICRO)
        (tmp_path / "link.db").symlink_to(path)
        for name in ("ledger.db", "link.db"):
            with pytest.raises(SettingsError, match="is the ledger itself; name another file"):
                ledger.export(tmp_path / name)
    with Ledger.open(path) as ledger:
        assert ledger.balance("ann").remaining == MICRO


EDITS = {
    "UPDATE log SET micro = 1 WHERE position = 2": "row 2: edited",
    "UPDATE log SET client = 'bob' WHERE position = 2": "row 2: edited",
    "UPDATE log SET delta = 0.0 WHERE position = 2": "row 2: edited",
    "UPDATE log SET answer = x'00' WHERE position = 2": "row 2: edited",
    "UPDATE log SET answer = NULL WHERE position = 2": "row 2: edited",
    "UPDATE log SET link = zeroblob(32) WHERE position = 2": "row 3: edited",
    "DELETE FROM log WHERE position = 2": "row 2 to 2: missing",
    "DELETE FROM log WHERE position > 1": "client 'ann': holds (3000000, 1000001,",
    "UPDATE accounts SET spent = 0 WHERE scope = 'client'": "client 'ann': holds (3000000, 0,",
    "UPDATE accounts SET allowed = 9000000 WHERE scope = 'client'": "client 'ann': holds (9000000",
    "UPDATE accounts SET allowed = 9 WHERE scope = 'model'": "model 'v1': holds (9",
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_found(address: str, edit: str) -> None:
    """The database itself refuses edits of the log; with that off, `verify` finds them."""
    with Ledger.open(address) as ledger:
        ledger.grant("ann", 3 * MICRO)
        pay(ledger, [charge("a"), charge("b", epsilon=1)])
        assert ledger.verify() == []
    if "accounts" not in edit:
        with pytest.raises(Exception, match="append-only"):
            edit_tables(address, edit)
    edit_tables(address, edit, is_allowed=True)
    with Ledger.open(address) as ledger:
        assert any(EDITS[edit] in problem for problem in ledger.verify())


def test_a_ledger_of_an_older_format_goes_on(address: str, tmp_path: Path) -> None:
    """Its answers stay free, its deltas count; it can be copied, too."""
    with Ledger.open(address) as ledger:
        ledger.grant("ann", 3 * MICRO)
        ledger.limit("v1", 9 * MICRO)
        pay(ledger, [charge("a"), charge("b")])
        before = ledger.clients()
    make_older(address)
    for _ in range(2):
        with Ledger.open(address) as ledger:
            assert ledger.verify() == [] and ledger.clients() == before
            assert pay(ledger, [charge("a"), charge("c", "a")]) == [repeated("a", MICRO)] * 2
    with Ledger.open(address) as ledger, Ledger.open(tmp_path / "copy.db") as copy:
        assert pay(ledger, [charge("d")]) == [fresh("d", 0)]
        assert ledger.copy_to(copy).answers == 3
        assert pay(copy, [charge("a"), charge("e")]) == [repeated("a", 0), Refusal("budget", 0)]
        assert ledger.verify() == copy.verify() == []


@pytest.mark.parametrize("is_first_format", [False, True])
def test_an_older_ledger_that_is_not_sound_stays_as_it_is(
    address: str, is_first_format: bool
) -> None:
    """New digests would say that it were; whoever opens it is told what is wrong."""
    with Ledger.open(address) as ledger:
        ledger.grant("ann", 3 * MICRO)
        pay(ledger, [charge("a")])
    make_older(address)
    if is_first_format:
        problem = "row 2: its kind is 'answer', as before version 0.2.0"
        edit_tables(address, "UPDATE log SET kind = 'answer' WHERE position = 2", is_allowed=True)
    else:
        problem = "client 'ann': holds (3000000, 0, "
        edit_tables(address, "UPDATE accounts SET spent = 0 WHERE scope = 'client'")
    for _ in range(2):
        with pytest.raises(LedgerError, match=re.escape(problem)):
            Ledger.open(address)


class UndoneError(Exception):
    """Ends a transaction without keeping anything of it."""


def test_a_long_log_is_read_in_parts(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows once, in order; its check too."""
    pay(ledger, [charge(str(k), epsilon=1) for k in range(7)])
    whole = ledger.rows()
    monkeypatch.setattr("fedcel.privacy.ledger.ledger.ROWS_AT_ONCE", 3)
    assert ledger.rows() == whole and [row.position for row in whole] == [*range(1, 9)]
    assert ledger.verify() == []


def test_an_overdrawn_account_is_found(ledger: Ledger) -> None:
    """A sound chain over a charge that no ledger would have booked."""
    problems = []

    def overdraw(db: LedgerDatabase) -> None:
        transaction = WriteTransaction(db)
        transaction.append(LogEntry("charge", "a", "ann", "v1", 4 * MICRO, 0.0, bytes(32)))
        transaction.append(LogEntry("charge", "a", "ann", "v1", 1, 0.0, bytes(31) + b"\1"))
        transaction.write()
        problems.extend(audit_ledger(db))
        raise UndoneError

    with pytest.raises(UndoneError):
        ledger.db.transact(overdraw, writing=True)
    assert any("spent more than the 3000000 it had" in text for text in problems)
    assert any("'a' was charged with two bodies" in text for text in problems)


def test_a_closed_ledger_says_so(address: str) -> None:
    """Never silently without a charge."""
    with Ledger.open(address) as ledger:
        pass
    with pytest.raises(LedgerError, match="closed"):
        pay(ledger, [charge("a")])


@given(st.text(), st.integers(-(2**40), 2**40), st.floats(0, 1), st.binary(max_size=9))
def test_a_link_is_of_the_json_of_its_entry(
    text: str, micro: int, delta: float, content: bytes
) -> None:
    """Whatever number a delta is: NumPy's is written as Python's, or it would read as edited."""
    for number in (delta, np.float64(delta)):
        entry = LogEntry("charge", text, "phone", "m", micro, number, content)
        body = [7, *entry[:6], content.hex()]
        assert link_entry(b"before", 7, entry) == link_of(body)
        answered = entry._replace(answer=text.encode("utf-8", "replace"))
        digest = sha256(answered.answer or b"").hexdigest()
        assert link_entry(b"before", 7, answered) == link_of([*body, digest])


def link_of(body: list[object]) -> bytes:
    """Return the link that a row's JSON has after another."""
    return sha256(b"before" + json.dumps(body).encode()).digest()
