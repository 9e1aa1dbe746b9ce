"""One table, drawn for a document and for a terminal."""

import pytest

from sims.report.table import format_columns, format_markdown, make_table


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
