"""Rows of text from the numbers that were read."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedcel.attacks import AttackRow
from fedcel.errors import RunError
from fedcel.leakage import SequenceLeak
from fedcel.settings import Settings
from sims import report
from sims.report import tables
from sims.report.book import FinishedRun, read_live
from sims.report.matched_table import name_attack
from sims.report.table import DASH
from sims.results.records import CellAttack, RunResult
from tests.sims.report.made import cell


def test_details_in_their_own_columns(outcome: Callable[..., RunResult]) -> None:
    """Each number under its name, means over seeds, a dash where it was not measured."""
    keys = {"answer_bits": 0.125, "within_class_spread": 0.0625}
    keys |= {"population_beyond_label": 2.5, "population_beyond_label_bernstein": 3.5}
    first = outcome(**keys, between_client_spread=0.001)
    second = outcome(**keys, between_client_spread=0.002)
    runs = tuple(FinishedRun(Settings(), (), result, (), {}, {}) for result in (first, second))
    one = replace(cell("a", 0.9, [None, None], noise=0.3), runs=runs)
    table = tables.tabulate_variants(
        "T", ["variant", "noise σ"], tables.DETAILS, [one, cell("b", 0.9, None)], anchored=False
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


def test_an_attack_that_was_cut_short_never_looks_like_a_whole_one(
    outcome: Callable[..., RunResult],
) -> None:
    """In the table of the terminal, in the report, and in the names of the worst attack."""
    cut = {"attack": "rmle", "mse": 0.05, "seconds-limit": 60.0, "share-of-steps": 0.34}
    row = AttackRow.model_validate(cut | {"observation": "smashed-data", "seed": 1})
    *_, line, stopped = tables.format_attack_rows([row]).splitlines()
    assert line.split()[-1] == "34"
    assert stopped == "rmle on smashed-data, seed 1: stopped at 60 s, 34% of its steps"
    run = FinishedRun(Settings(), (), outcome(), (row,), {}, {})
    table = tables.tabulate_attacks([replace(cell("a", 0.9, 2.0), runs=(run,))])
    assert table.rows[0][table.head.index("steps taken, %")] == "34"
    worst = CellAttack.model_validate(cut)
    shown = cell("a", 0.9, 2.0, attack=worst)
    assert shown.name_worst() == "rmle / rmle stopped at 60 s, 34% of its steps"
    assert name_attack(worst, shown.rows[0]) == "rmle, stopped at 60 s, 34% of its steps"


def test_an_attack_that_pays_says_how_often_it_asked(outcome: Callable[..., RunResult]) -> None:
    """One that asks for nothing has a dash there."""
    paying = AttackRow.model_validate({"attack": "a", "queries": 2000, "mse": 0.5})
    found = (paying, AttackRow.model_validate({"attack": "b", "mse": 0.5}))
    run = FinishedRun(Settings(), (), outcome(), found, {}, {})
    table = tables.tabulate_attacks([replace(cell("a", 0.9, 2.0), runs=(run,))])
    assert [row[table.head.index("queries paid for")] for row in table.rows] == ["2000", DASH]


def test_the_anchors_stand_where_nothing_was_rebuilt() -> None:
    """The label alone picks a tenth of the images, nothing a hundredth; their errors are dashes."""
    rows = tables.tabulate_variants("T", ["variant"], tables.MAIN, [cell("a", 0.9, 2.0)]).rows
    assert [(row[0].partition(" (")[0], *row[4:6], row[8]) for row in rows[1:]] == [
        ("*label only", "0.00", "10.0", DASH),
        ("*nothing", "0.00", "1.0", DASH),
    ]


def test_a_file_keeps_the_sequences() -> None:
    """As records of a result, which older files lack."""
    result = cell("none", 0.9, 1.0).results[0]
    assert result.linearised_sequences == ()
    parts = [{"messages": 1, "bits": 2.0, "mse": 0.04}, {"messages": 4, "bits": 3.5, "mse": 0.03}]
    written = json.loads(result.model_dump_json(by_alias=True)) | {"linearised-sequences": parts}
    again = RunResult.model_validate_json(json.dumps(written))
    assert again.linearised_sequences == (SequenceLeak(1, 2.0, 0.04), SequenceLeak(4, 3.5, 0.03))


def test_rows_of_each_encoder() -> None:
    """Bits and error, mean over runs; a dash where a number of messages is missing."""
    runs = [[SequenceLeak(1, 2.0, 0.04), SequenceLeak(4, 3.0, 0.03)], [SequenceLeak(1, 4.0, 0.02)]]
    single = [[SequenceLeak(16, 9.0, 0.01)]]
    table = tables.tabulate_sequences({"noise": runs, "older run": [[]], "": single})
    assert table.head == ("", "1 message", "4 messages", "16 messages")
    assert table.rows == (
        ("noise, bits", "3.0", "3.0", "–"),
        ("noise, least MSE", "0.0300", "0.0300", "–"),
        ("bits", "–", "–", "9.0"),
        ("least MSE", "–", "–", "0.0100"),
    )


ROW: dict[str, Any] = {
    "mechanism": "laplace",
    "epsilon": 4.0,
    "answers": 60,
    "spent": 240.0,
    "accuracy": 0.5,
    "attack": "logit-inversion",
    "seed": 0,
    "candidates": 30,
    "mse": 0.05,
    "identification-1": 0.1,
    "oracle-mse": 0.04,
}


def written(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """Write live.json."""
    (folder / "live.json").write_text(json.dumps(rows))
    return folder


def test_seeds_are_one_line_and_prices_are_in_order(tmp_path: Path) -> None:
    """The mean over seeds; what was paid beside it."""
    again = {"seed": 1, "identification-1": 0.3, "mse": 0.07}
    rows = [ROW, ROW | again, ROW | {"epsilon": 0.5, "spent": 30.0, "accuracy": 0.2}]
    found = tables.tabulate_live(read_live(written(tmp_path, rows)))
    assert [row[2:7] for row in found.rows] == [
        ("0.5", "30", "60", "30", "20.0"),
        ("4", "240", "60", "30", "50.0"),
    ]
    assert found.rows[1][7].startswith("20.0") and found.rows[1][8].startswith("0.0600")
    assert found.rows[1][9] == "0.0400"
    assert "logit-inversion" in report.format_live_table(tmp_path)


def test_one_price_has_no_picture_and_no_file_no_rows(tmp_path: Path) -> None:
    """And damage is told."""
    assert read_live(tmp_path) == []
    with pytest.raises(RunError, match="attack again"):
        read_live(written(tmp_path, [{"attack": "x"}]))
