"""What larger budgets brought: who was attacked with several, and whether more would help."""

from sims.report.larger_budgets import describe_sweeps, find_sweeps, make_sweeps_table
from sims.report.table import DASH
from sims.results.records import BenchRow
from tests.sims.results.made import attack, make_row


def row(variant: str, errors: dict[float, float | None], seed: int = 0) -> BenchRow:
    """Return a row that the decoder attacked with these budgets."""
    attacks = (attack("decoder", mse, budget=budget) for budget, mse in errors.items())
    return make_row(variant, 0.3, *attacks, seed=seed, title=f"the {variant}")


ROWS = [
    row("a", {10: 0.0391, 1: 0.05, 4: 0.04}),
    row("b", {1: 0.05, 4: 0.03, 10: 0.0293}),
    row("c", {1: 0.02, 4: None}),
    row("a", {1: 0.06}, seed=1),
    row("d", {1: 0.05, 10: 0.04}),
]


def test_only_who_was_attacked_with_several_in_the_order_of_budgets() -> None:
    """One budget, one that rebuilt nothing with another, and another seed are no sweep."""
    assert [(s.point, list(s.errors.items())) for s in find_sweeps(ROWS)] == [
        (("a", 0.3), [(1, 0.05), (4, 0.04), (10, 0.0391)]),
        (("b", 0.3), [(1, 0.05), (4, 0.03), (10, 0.0293)]),
        (("d", 0.3), [(1, 0.05), (10, 0.04)]),
    ]


def test_only_the_budget_differs_in_a_sweep() -> None:
    """Another attack, other knowledge, fewer targets or another version are sweeps of their own."""
    first = attack("decoder", 0.05)
    for other in ({"attack": "rmle"}, {"knowledge": "x"}, {"targets": 10}, {"revision": 2}):
        second = attack("decoder", 0.04, budget=4.0).model_copy(update=other)
        assert find_sweeps([make_row("v", 0.3, first, second)]) == []


def test_a_fiftieth_less_is_the_line() -> None:
    """.0391 of .04 is 97.75 %, still falling; .0293 of .03 is 97.67 %, too; .0295 is not."""
    a, b, _ = find_sweeps(ROWS)
    assert a.falling and b.falling
    assert not b._replace(errors={1: 0.05, 4: 0.03, 10: 0.0295}).falling
    assert not b._replace(errors={1: 0.05, 4: 0.03, 10: 0.04}).falling


def test_table_has_a_column_for_each_budget() -> None:
    """And a dash where that one was not tried; names come from the page where it has them."""
    table = make_sweeps_table(find_sweeps(ROWS), {("d", 0.3): "the d, 0.3", ("a", 0.1): "wrong"})
    assert table.head[2:] == ("MSE, 1x", "MSE, 4x", "MSE, 10x", "still falling")
    assert table.rows[0] == ("the a", "decoder", "0.0500", "0.0400", "0.0391", "yes")
    assert table.rows[2] == ("the d, 0.3", "decoder", "0.0500", DASH, "0.0400", "yes")


def test_what_is_said_follows_the_numbers() -> None:
    """How many of how many, or none."""
    found = find_sweeps(ROWS)
    flat = found[0]._replace(errors={1: 0.05, 4: 0.05})
    assert "still falling, by more than 2 %" in describe_sweeps([flat, *found])
    assert "for 3 of 4" in describe_sweeps([flat, *found])
    assert describe_sweeps([flat, flat]).endswith("for 0 of 2.")
