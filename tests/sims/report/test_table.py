"""One table, drawn for a document and for a terminal."""

import pytest

from sims.report.table import (
    DASH,
    Line,
    format_columns,
    format_estimate,
    format_latex,
    format_markdown,
    make_table,
    measure_records,
    tabulate,
)
from sims.results.columns import Column, find_columns
from sims.results.intervals import Estimate
from sims.results.records import PredictorScores


def test_markdown_escapes_bars() -> None:
    """A bar within a cell would begin another one."""
    table = make_table("T", ["a", "b"], [["x|y", "1"], ["z", "22"]])
    assert format_markdown(table) == "| a | b |\n| --- | --- |\n| x\\|y | 1 |\n| z | 22 |"


def test_words_are_read_from_the_left_and_numbers_end_alike() -> None:
    """Columns are as wide as their widest cell; emphasis is not shown, long names are cut."""
    table = make_table("T", ["name", "how", "n"], [["*a*", "by", "1"], ["bcdef", "at", "100"]], 2)
    said = ["name   how    n", "-----  ---  ---", "a      by     1", "bcdef  at   100"]
    assert format_columns(table) == "\n".join(said)
    assert format_columns(table, longest=4).splitlines()[-1] == "…     at   100"


def test_rows_fit_the_header() -> None:
    """A row that is short would stand under the wrong heading."""
    with pytest.raises(ValueError, match=r"table 'T': \('x',\) has 1 cells, not 2"):
        make_table("T", ["a", "b"], [["x"]])


def test_latex_takes_no_letter_for_a_command() -> None:
    """What TeX would read as a command, a comment or mathematics is written as it looks."""
    table = make_table("T", ["a_b", "50 %"], [["x & y", "1 ± 2"], ["*{\\it}*", "≤ 3"]])
    text = format_latex(table._replace(name="At 2 #"))
    assert text.splitlines() == [
        r"\begin{table}",
        r"\centering",
        r"\caption{At 2 \#.}",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"a\_b & 50 \% \\",
        r"\midrule",
        r"x \& y & 1 $\pm$ 2 \\",
        r"\emph{\{\textbackslash{}it\}} & $\leq$ 3 \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]


def test_lines_show_texts_and_measures_and_csv_quotes_them() -> None:
    """A dash for a text or number that is lacking, no interval of a whole number in common."""
    columns = [Column("accuracy", "right, %", 1, 100), Column("ece", "count", 0)]
    scores = [PredictorScores(accuracy=a, ece=e) for a, e in ((0.4, 6), (0.5, 8), (0.6, None))]
    lines = [
        measure_records(('"a"',), scores[:1]),
        measure_records(("b", "c", "cut"), scores[2:]),
        Line(("d",), lambda column: Estimate(1.0, 0.0)),
    ]
    table = tabulate("T", ("name", "how, or –"), columns, lines)
    assert table.rows == (
        ('"a"', DASH, "40.0", "6"),
        ("b", "c", "60.0", DASH),
        ("d", DASH, "100.0 ± 0.0", "1"),
    )
    assert table.head == ("name", "how, or –", "right, %", "count")


def test_a_limit_above_all_that_there_is_is_no_number() -> None:
    """A population's limit of 38 113 bits says nothing; one of 64 does."""
    (column,) = find_columns("population-beyond-label")
    assert format_estimate(column, Estimate(38112.84, 2.0)) == "no limit"
    assert format_estimate(column, Estimate(64.0, 2.0)) == "64.00 ± 2.00"
