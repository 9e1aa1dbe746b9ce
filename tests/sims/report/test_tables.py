"""Rows of text from the numbers that were read."""

from collections.abc import Callable
from dataclasses import replace

from fedcel.attacks import AttackRow
from fedcel.settings import Settings
from sims.report import tables
from sims.report.book import FinishedRun
from sims.report.table import DASH
from sims.results.records import BenchRow, RunResult
from tests.sims.report.made import cell
from tests.sims.results.made import attack, make_row


def test_details_in_their_own_columns(outcome: Callable[..., RunResult]) -> None:
    """Each number under its name, means over seeds, a dash where it was not measured."""
    keys = {"answer_bits": 0.125, "within_class_spread": 0.0625}
    keys |= {"population_beyond_label": 2.5, "population_beyond_label_bernstein": 3.5}
    first = outcome(**keys, between_client_spread=0.001)
    second = outcome(**keys, between_client_spread=0.002)
    runs = tuple(FinishedRun("r", Settings(), (), result, (), {}) for result in (first, second))
    one = replace(cell("a", 0.9, [None, None], noise=0.3), runs=runs)
    table = tables.tabulate_variants(
        "T", ["variant", "noise σ"], tables.DETAILS, [one, cell("b", 0.9, None)], has_anchors=False
    )
    assert len(set(table.head)) == len(table.head)
    assert dict(zip(table.head, table.rows[0], strict=True)) == {
        "variant": "a",
        "noise σ": "0.3",
        "answers alone, bits": "0.12",
        "bits beyond label": "2.00",
        "certificate beyond label, bits": "2.25",
        "unseen images beyond label, bits": "2.50",
        "unseen beyond label, bits (Bernstein)": "3.50",
        "within-class spread": "0.0625",
        "between clients, z²": "0.0015",
    }
    assert set(table.rows[1][1:]) == {DASH}


def test_what_was_found_and_what_was_not_run() -> None:
    """Columns without a number are left out; a reason stands in a line of its own."""
    rows = [
        AttackRow(attack="rmle", observation="smashed-data", mse=0.05, seed=0),
        AttackRow(attack="first-layer", observation="update", skipped="there is none"),
    ]
    head, _, line, reason = tables.format_attack_rows(rows).splitlines()
    assert head.split() == ["attack", "sees", "knows", "attack", "seed", "MSE"]
    assert line.split() == ["rmle", "smashed-data", DASH, "0", "0.0500"]
    assert reason == "first-layer on update: there is none"
    assert tables.format_attack_rows(rows[1:]) == f"{reason}\n"


def test_an_attack_that_pays_says_how_often_it_asked(outcome: Callable[..., RunResult]) -> None:
    """One that asks for nothing has a dash there."""
    paying = AttackRow.model_validate({"attack": "a", "queries": 2000, "mse": 0.5})
    found = (paying, AttackRow.model_validate({"attack": "b", "mse": 0.5}))
    run = FinishedRun("r", Settings(), (), outcome(), found, {})
    table = tables.tabulate_attacks([replace(cell("a", 0.9, 2.0), runs=(run,))])
    assert [row[table.head.index("queries paid for")] for row in table.rows] == ["2000", DASH]


def test_the_anchors_stand_where_nothing_was_rebuilt() -> None:
    """The label alone picks a tenth of the images, nothing a hundredth; their errors are dashes."""
    rows = tables.tabulate_variants("T", ["variant"], tables.MAIN, [cell("a", 0.9, 2.0)]).rows
    assert [(row[0].partition(" (")[0], *row[4:6], row[8]) for row in rows[1:]] == [
        ("*label only", "0.00", "10.0", DASH),
        ("*nothing", "0.00", "1.0", DASH),
    ]


def sweep(variant: str, errors: dict[float, float | None], **other: object) -> BenchRow:
    """Return a row that the decoder attacked with these budgets, the last one in another way."""
    attacks = [attack("decoder", mse, budget=budget) for budget, mse in errors.items()]
    last = attacks[-1].model_copy(update=other)
    return make_row(variant, 0.3, *attacks[:-1], last)


def test_only_the_budget_differs_in_a_sweep() -> None:
    """By rising budget; .0391 of .04 is still falling, .0295 of .03 is not; one is no sweep."""
    rows = [
        sweep("a", {10: 0.0391, 1: 0.05, 4: 0.04}),
        sweep("b", {1: 0.05, 4: 0.03, 10: 0.0295}),
        sweep("c", {1: 0.05, 10: 0.06}),
        sweep("d", {1: 0.02, 4: None}),
        *(
            sweep("e", {1: 0.05, 4: 0.04}, **other)
            for other in ({"attack": "rmle"}, {"knowledge": "x"}, {"targets": 10}, {"revision": 2})
        ),
    ]
    found = [replace(cell(row.variant, 0.9, 2.0), rows=(row,)) for row in rows]
    table = tables.tabulate_budgets(found)
    assert table.head[2:] == ("MSE, 1x", "MSE, 4x", "MSE, 10x", "still falling")
    assert table.rows == (
        ("a", "decoder", "0.0500", "0.0400", "0.0391", "yes"),
        ("b", "decoder", "0.0500", "0.0300", "0.0295", "no"),
        ("c", "decoder", "0.0500", DASH, "0.0600", "no"),
    )
