"""One table, drawn for a document and for a terminal."""

import pytest

from sims.report.table import (
    TextColumn,
    format_columns,
    format_csv,
    format_latex,
    format_markdown,
    make_table,
    tabulate,
)


def test_markdown_escapes_bars() -> None:
    """A bar within a cell would begin another one."""
    table = make_table("T", ["a", "b"], [["x|y", "1"], ["z", "22"]])
    assert format_markdown(table) == "| a | b |\n| --- | --- |\n| x\\|y | 1 |\n| z | 22 |"


def test_words_are_read_from_the_left_and_numbers_end_alike() -> None:
    """Columns are as wide as their widest cell."""
    table = make_table("T", ["name", "how", "n"], [["a", "by", "1"], ["bcdef", "at", "100"]], 2)
    said = ["name   how    n", "-----  ---  ---", "a      by     1", "bcdef  at   100"]
    assert format_columns(table) == "\n".join(said)


def test_rows_fit_the_header() -> None:
    """A row that is short would stand under the wrong heading."""
    with pytest.raises(ValueError, match=r"table 'T': \('x',\) has 1 cells, not 2"):
        make_table("T", ["a", "b"], [["x"]])


def test_latex_takes_no_letter_for_a_command() -> None:
    """What TeX would read as a command, a comment or mathematics is written as it looks."""
    table = make_table("T", ["a_b", "50 %"], [["x & y", "1 ± 2"], ["*{\\it}*", "≤ 3"]])
    text = format_latex(table._replace(heading="At 2 #"))
    assert text.splitlines() == [
        r"\begin{table}",
        r"\centering",
        r"\caption{At 2 \#}",
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


def test_columns_show_rows_and_csv_quotes_them() -> None:
    """A heading and a text for each; commas and quotes stay within their cell."""
    columns = [
        TextColumn("n", str),
        TextColumn("half, as text", lambda n: f'"{n / 2}"'),
    ]
    table = tabulate("T", columns, [1, 2])
    assert table.rows == (("1", '"0.5"'), ("2", '"1.0"'))
    assert format_csv(table) == 'n,"half, as text"\n1,"""0.5"""\n2,"""1.0"""\n'
