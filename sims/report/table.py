"""One table model, drawn as Markdown, LaTeX, CSV and terminal columns; `grid.html.jinja`: HTML."""

import csv
from collections.abc import Callable, Iterable, Sequence
from io import StringIO
from typing import Any, NamedTuple

from sims.results.columns import BITS, IDENTIFICATION, MSE, Column
from sims.results.intervals import Estimate, estimate
from sims.results.records import BenchRow

DASH = "–"
GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "varepsilon", "λ": "lambda",
    "μ": "mu", "ξ": "xi", "π": "pi", "ρ": "rho", "σ": "sigma", "τ": "tau", "Δ": "Delta",
}  # fmt: skip
LATEX = str.maketrans(
    {
        **{letter: f"\\{letter}" for letter in "&%$#_{}"},
        **{letter: rf"$\{name}$" for letter, name in GREEK.items()},
        "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
        "–": "--", "…": r"\ldots{}", "−": "$-$", "≶": r"$\leq$ or $\geq$", "≤": r"$\leq$",
        "≥": r"$\geq$", "±": r"$\pm$", "×": r"$\times$", "→": r"$\to$",
        "≈": r"$\approx$", "∞": r"$\infty$", "·": r"$\cdot$",
    }
)  # fmt: skip
"""LaTeX of characters that it would read as commands, and of those that pdflatex lacks."""


def format_number(value: float | None, digits: int) -> str:
    """Return a number with so many decimals, None as a dash."""
    return DASH if value is None else f"{value:z.{digits}f}"


def format_spread(column: Column, mean: float | None, spread: float | None) -> str:
    """Return "mean ± spread" as the column shows them, or the mean where there is no spread."""
    text = format_number(None if mean is None else column.scale * mean, column.digits)
    if spread is None:
        return text
    return f"{text} ± {format_number(column.scale * spread, column.digits)}"


def format_estimate(column: Column, value: Estimate) -> str:
    """Return the mean and half of its 95 % interval, as the column shows them."""
    return format_spread(column, value.mean, value.half)


class TextColumn(NamedTuple):
    """Heading of a column, and the text of a row in it."""

    head: str
    show: Callable[[Any], str]


AnyColumn = TextColumn | Column
"""A column of texts, or of the estimates that `measure(column)` of a row gives."""


class Anchor(NamedTuple):
    """Line of an attacker who gets no message: no bits beyond the label, by definition."""

    label: str
    measures: dict[str, float | None]

    def measure(self, column: Column) -> Estimate:
        """Return the exact value of a measure."""
        return Estimate(self.measures.get(column.key))


def find_anchors(rows: Sequence[BenchRow]) -> list[Anchor]:
    """Return the anchors of a table: an attacker who knows the label only, and one with nothing.

    `rows` are cells of a bench, held to an attack where its error is shown.
    """
    by_label = estimate(row.label_only_identification for row in rows).mean
    choices = (row.identification_candidates for row in rows)
    chance = estimate(1 / count if count else None for count in choices).mean
    by_label_mse, mean_mse = (
        estimate(row.measure(key) for row in rows).mean for key in ("oracle-mse", "mean-mse")
    )
    keys = (BITS.key, IDENTIFICATION.key, MSE.key)
    return [
        Anchor(
            "label only (class means)", dict(zip(keys, (0.0, by_label, by_label_mse), strict=True))
        ),
        Anchor("nothing (mean image)", dict(zip(keys, (0.0, chance, mean_mse), strict=True))),
    ]


class Table(NamedTuple):
    """A header and rows of equal length; `words` columns are text and read from the left."""

    name: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1
    heading: str = ""
    note: str = ""
    is_anchored: bool = False
    """Whether the last two rows are anchors."""


def make_table(
    name: str, head: Iterable[str], rows: Iterable[Iterable[str]], words: int = 1
) -> Table:
    """Return a table; ValueError when a row has more or fewer cells than the header."""
    table = Table(name, tuple(head), tuple(tuple(row) for row in rows), words)
    for row in table.rows:
        if len(row) != len(table.head):
            raise ValueError(f"table {name!r}: {row} has {len(row)} cells, not {len(table.head)}")
    return table


def tabulate(name: str, columns: Sequence[AnyColumn], rows: Iterable[Any], words: int = 1) -> Table:
    """Return the table of rows as columns show them."""

    def show(column: AnyColumn, row: Any) -> str:
        if isinstance(column, TextColumn):
            return column.show(row)
        return format_estimate(column, row.measure(column))

    lines = ([show(column, row) for column in columns] for row in rows)
    return make_table(name, (column.head for column in columns), lines, words)


def format_markdown(table: Table) -> str:
    """Return the table as Markdown; a bar within a cell would end it and is escaped."""
    rule = ["---"] * len(table.head)
    rows = [[cell.replace("|", "\\|") for cell in row] for row in (table.head, rule, *table.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def format_csv(table: Table) -> str:
    """Return the table as comma-separated values."""
    file = StringIO()
    csv.writer(file, lineterminator="\n").writerows([table.head, *table.rows])
    return file.getvalue()


def escape_latex(text: str) -> str:
    """Return text as LaTeX shows it: nothing of it is a command."""
    return text.translate(LATEX)


def format_latex(table: Table) -> str:
    """Return the table as LaTeX, with the rules of the package booktabs and its caption above.

    A cell between asterisks, which Markdown emphasises, is emphasised.
    """

    def cell(text: str) -> str:
        if len(text) > 2 and text[0] == text[-1] == "*":
            return rf"\emph{{{escape_latex(text[1:-1])}}}"
        # After a line's end TeX would take a bracket or an asterisk for an option of it.
        return ("{}" if text[:1] in ("[", "*") else "") + escape_latex(text)

    head, *rows = (" & ".join(map(cell, row)) + r" \\" for row in (table.head, *table.rows))
    caption = " ".join(filter(None, (table.heading, table.note))) or table.name
    columns = "l" * table.words + "r" * (len(table.head) - table.words)
    return "\n".join(
        [
            r"\begin{table}", r"\centering", rf"\caption{{{escape_latex(caption)}}}",
            rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule",
            *rows, r"\bottomrule", r"\end{tabular}", r"\end{table}",
        ]
    )  # fmt: skip


def format_columns(table: Table) -> str:
    """Return lines of equally wide columns, those of words from the left."""
    widths = [max(map(len, column)) for column in zip(table.head, *table.rows, strict=True)]
    rule = ["-" * width for width in widths]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if number < table.words else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (table.head, rule, *table.rows)
    )
