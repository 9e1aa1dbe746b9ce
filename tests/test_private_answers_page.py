"""The page of private answers shows the rows that were measured, as good as it says."""

from pathlib import Path

from tests.bench.private_answers import make_tables, read_rows

DOCS = Path(__file__).parents[1] / "docs"
ROWS = read_rows(DOCS / "results" / "private-answers.json")


def test_the_page_shows_the_rows() -> None:
    """Each table is the one that the bench prints."""
    page = (DOCS / "research" / "private-answers.md").read_text()
    tables = make_tables(ROWS)
    assert len(tables) == 3
    assert all(table in page for table in tables)


def test_the_errors_are_below_a_twentieth() -> None:
    """Everywhere, on both data sets; the accuracy is not lower, but for chance."""
    assert max(float(row["ece"]) for row in ROWS) < 0.05
    assert all(float(row["accuracy"]) > float(row["accuracy-before"]) - 0.01 for row in ROWS)
