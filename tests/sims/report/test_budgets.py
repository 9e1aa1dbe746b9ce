"""What larger budgets brought: who was attacked with several, and whether more would help."""

from sims.report.budgets import describe_sweeps, find_sweeps, make_sweeps_table
from sims.report.records import Escalated
from sims.report.text import DASH


def row(variant: str, budget: float, mse: float | None, seed: int = 0) -> Escalated:
    """Return a row of escalated.json."""
    attack = None if mse is None else "decoder"
    return Escalated(
        variant=variant, strength=0.3, seed=seed, title=f"the {variant}", attack=attack,
        budget=budget, mse=mse,
    )  # fmt: skip


ROWS = [
    row("a", 10, 0.0391), row("a", 1, 0.05), row("b", 1, 0.05), row("a", 4, 0.04),
    row("b", 4, 0.03), row("b", 10, 0.0293), row("c", 1, 0.02), row("c", 4, None),
    row("a", 1, 0.06, seed=1), row("d", 1, 0.05), row("d", 10, 0.04),
]  # fmt: skip


def test_only_who_was_attacked_with_several_in_the_order_of_budgets() -> None:
    """One budget, one that no attack worked with, and another seed are no sweep."""
    assert [(s.which, list(s.errors.items())) for s in find_sweeps(ROWS)] == [
        (("a", 0.3), [(1, 0.05), (4, 0.04), (10, 0.0391)]),
        (("b", 0.3), [(1, 0.05), (4, 0.03), (10, 0.0293)]),
        (("d", 0.3), [(1, 0.05), (10, 0.04)]),
    ]


def test_a_cell_that_was_trained_again_is_another() -> None:
    """Ten times the effort on the old model says nothing of the new one."""
    old, new = row("a", 10, 0.03), row("a", 1, 0.05)
    assert find_sweeps([old, new])
    assert not find_sweeps([old.model_copy(update={"accuracy": 0.9}), new])


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
    assert "no longer falling for any of 2" in describe_sweeps([flat, flat])
