"""The ledger: what is charged, what is not, what is refused."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedcel.privacy.ledger import MICRO, Balance, Charge, Ledger, Receipt, Refusal
from tests.fedcel.privacy.ledger.charges import charge


def test_a_charge_by_hand(ledger: Ledger) -> None:
    """Charged, settled, told for free to a retry and to the same message under another id."""
    assert ledger.charge([charge("a", "x")]) == [Receipt(None, 2 * MICRO)]
    ledger.settle([("a", b"answer")])
    assert ledger.charge([charge("a", "x"), charge("b", "x")]) == [
        Receipt(b"answer", 2 * MICRO),
        Receipt(b"answer", 2 * MICRO),
    ]
    assert ledger.balance("ann") == Balance(3 * MICRO, MICRO, 2 * MICRO, 2.0**-12)


def test_other_clients_and_versions_pay_for_the_same_message(ledger: Ledger) -> None:
    """Answers are remembered for one client and one model version."""
    ledger.grant("bob", MICRO)
    ledger.charge([charge("a", "x")])
    ledger.settle([("a", b"answer")])
    foreign = [charge("b", "x", client="bob"), charge("c", "x", model="v0")]
    assert ledger.charge([*foreign, charge("d", "x", model="v2")]) == [
        Receipt(None, 0),
        Receipt(None, MICRO),
        Receipt(None, 0),
    ]
    assert ledger.clients() == {
        "ann": Balance(3 * MICRO, 3 * MICRO, 0, 3 * 2.0**-12),
        "bob": Balance(MICRO, MICRO, 0, 2.0**-12),
    }


def test_the_same_id_with_another_body_is_refused(ledger: Ledger) -> None:
    """Whatever differs: message, version, client; answered or not."""
    ledger.grant("bob", MICRO)
    ledger.charge([charge("a", "x")])
    changed = [charge("a", "y"), charge("a", "x", model="v2")]
    for _ in range(2):
        assert ledger.charge(changed) == [Refusal("replayed", 2 * MICRO)] * 2
        assert ledger.charge([charge("a", "x", client="bob")]) == [Refusal("replayed", MICRO)]
        ledger.settle([("a", b"answer")])


def test_a_charge_without_an_answer_is_paid_again(ledger: Ledger) -> None:
    """Nobody knows whether the first answer was seen; the first stored one is kept."""
    for remaining in (2, 1):
        assert ledger.charge([charge("a")]) == [Receipt(None, remaining * MICRO)]
    ledger.settle([("a", b"one"), ("a", b"two")])
    assert ledger.charge([charge("a")]) == [Receipt(b"one", MICRO)]


def test_the_budget_ends_exactly(ledger: Ledger) -> None:
    """3 epsilon pay for three in one group, not a micro-epsilon more; answers stay free."""
    replies = ledger.charge([charge(str(k)) for k in range(4)])
    assert replies[3] == Refusal("budget", 0)
    assert [reply.remaining for reply in replies] == [2 * MICRO, MICRO, 0, 0]
    ledger.settle([("0", b"zero")])
    assert ledger.charge([charge("0"), charge("4", epsilon=1)]) == [
        Receipt(b"zero", 0),
        Refusal("budget", 0),
    ]
    ledger.grant("ann", 1)
    assert ledger.charge([charge("4", epsilon=1)]) == [Receipt(None, 0)]


def test_a_model_version_has_a_budget_over_all_clients(ledger: Ledger) -> None:
    """What was spent before the limit counts; lowered below it, nothing is left."""
    ledger.grant("bob", 3 * MICRO)
    ledger.charge([charge("a")])
    ledger.limit("v1", 2 * MICRO)
    replies = ledger.charge([charge("b", client="bob"), charge("c"), charge("d", model="v2")])
    assert replies[1] == Refusal("model-budget", 0)
    assert isinstance(replies[0], Receipt) and isinstance(replies[2], Receipt)
    ledger.limit("v1", MICRO)
    assert ledger.charge([charge("e")]) == [Refusal("model-budget", -MICRO)]


def test_strangers_are_refused(ledger: Ledger) -> None:
    """Known is who was granted something, be it nothing."""
    assert ledger.charge([charge("a", client="eve")]) == [Refusal("unknown-client", 0)]
    assert ledger.balance("eve") == Balance(0, 0, 0, 0.0)
    ledger.grant("eve", 0)
    assert ledger.charge([charge("a", client="eve")]) == [Refusal("budget", 0)]


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
    assert ledger.charge([charge("a")])[0].remaining == MICRO


@pytest.mark.parametrize("micro", [-1, 2**62])
def test_impossible_budgets_are_refused(ledger: Ledger, micro: int) -> None:
    """Below 0, or more than the file can count."""
    for method in (ledger.grant, ledger.limit):
        with pytest.raises(ValueError, match="budget is"):
            method("ann", micro)
    with pytest.raises(ValueError, match="budget is"):
        ledger.grant("ann", 2**62 - 2)


requests = st.tuples(st.sampled_from("abcdef"), st.sampled_from("xyz"), st.integers(1, 4))


@settings(max_examples=40)
@example(
    [([("b", "x", 1)], False), ([("a", "x", 1), ("b", "x", 1)], True), ([("a", "x", 1)], True)]
)
@given(st.lists(st.tuples(st.lists(requests, max_size=4), st.booleans()), max_size=8))
def test_any_history_is_what_plain_arithmetic_makes_of_it(
    tmp_path_factory: pytest.TempPathFactory,
    groups: list[tuple[list[tuple[str, str, int]], bool]],
) -> None:
    """Against dictionaries: spent, answers and refusals of any order of groups."""
    bodies: dict[str, str] = {}
    answers: dict[str, bytes] = {}
    spent, budget = 0, 12
    with Ledger.open(tmp_path_factory.mktemp("any") / "ledger.db") as ledger:
        ledger.grant("ann", budget)
        for group, settled in groups:
            paid = []
            replies = ledger.charge([charge(r, m, epsilon=e) for r, m, e in group])
            for (request, message, epsilon), reply in zip(group, replies, strict=True):
                if bodies.get(request, message) != message:
                    expected: Receipt | Refusal = Refusal("replayed", budget - spent)
                elif message in answers:
                    expected = Receipt(answers[message], budget - spent)
                elif spent + epsilon > budget:
                    expected = Refusal("budget", budget - spent)
                else:
                    bodies[request] = message
                    spent += epsilon
                    paid.append((request, message))
                    expected = Receipt(None, budget - spent)
                assert reply == expected
            if settled:
                new = {request: f"{request}{spent}".encode() for request, _ in paid}
                ledger.settle([*new.items()])
                for request, message in bodies.items():  # of two, the one that was charged first
                    if request in new:
                        answers.setdefault(message, new[request])
        assert ledger.balance("ann")[:3] == (budget, spent, budget - spent)
        assert ledger.verify() == []


def test_deltas_add_up_to_one_percent_at_most(ledger: Ledger) -> None:
    """Also within one group, and after a new start of the process; epsilon is left."""
    ledger.grant("ann", 10 * MICRO)
    charges = [
        charge(f"d{k}")._replace(epsilon=1, delta=0.004, message=bytes([k]) * 32) for k in range(3)
    ]
    first, second, third = ledger.charge(charges)
    assert isinstance(first, Receipt) and isinstance(second, Receipt)
    assert third == Refusal("delta", second.remaining)
    assert ledger.balance("ann").delta == pytest.approx(0.008)
    (late,) = ledger.charge([charges[2]])
    assert isinstance(late, Refusal) and late.reason == "delta"
    (pure,) = ledger.charge([charges[2]._replace(delta=0.0)])
    assert isinstance(pure, Receipt)


def test_an_unknown_client_is_admitted_once(ledger: Ledger) -> None:
    """Its budget is granted in the same transaction that finds it unknown."""
    assert ledger.admit("new", 5) and not ledger.admit("new", 5)
    assert ledger.balance("new").granted == 5
    assert list(ledger.clients()) == ["ann", "new"]
