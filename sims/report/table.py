"""One table model, drawn as Markdown, LaTeX, CSV and terminal columns; HTML is `grid.html.jinja`.

A `TableColumn` has a heading and turns a row, whatever it is, into text.
"""

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Generic, NamedTuple, Protocol, TypeVar

from sims.results.columns import BITS, IDENTIFICATION, MSE, Column
from sims.results.intervals import Estimate, crossed_interval, estimate
from sims.results.records import BenchRow

DASH = "–"
GREEK = {
    "α": "alpha",
    "β": "beta",
    "γ": "gamma",
    "δ": "delta",
    "ε": "varepsilon",
    "λ": "lambda",
    "μ": "mu",
    "ξ": "xi",
    "π": "pi",
    "ρ": "rho",
    "σ": "sigma",
    "τ": "tau",
    "Δ": "Delta",
}
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
Row = TypeVar("Row")
RowContra = TypeVar("RowContra", contravariant=True)


def format_number(value: float | None, digits: int) -> str:
    """Return a number with so many decimals, None as a dash."""
    return DASH if value is None else f"{value:z.{digits}f}"


def format_spread(mean: float | None, spread: float | None, digits: int, scale: float = 1.0) -> str:
    """Return "mean ± spread", or the mean where there is no spread."""
    text = format_number(None if mean is None else scale * mean, digits)
    return text if spread is None else f"{text} ± {format_number(scale * spread, digits)}"


def format_estimate(column: Column, value: Estimate) -> str:
    """Return the mean and half of its 95 % interval, as the column shows them."""
    return format_spread(value.mean, value.half, column.digits, column.scale)


def format_crossed(
    column: Column, seeds: Iterable[float | None], images: Iterable[float | None] = ()
) -> str:
    """Return the mean over seeds and its interval over seeds and images (`crossed_interval`)."""
    return format_estimate(column, crossed_interval(seeds, images))


class Measured(Protocol):
    """A row of a table that has estimates of measures."""

    def measure(self, column: Column) -> Estimate:
        """Return the estimate of a measure, `UNKNOWN` where it was not measured."""


@dataclass(frozen=True)
class TableColumn(Generic[RowContra]):
    """Heading of a column, and the text of a row in it."""

    head: str
    show: Callable[[RowContra], str]


def show_measure(column: Column, head: str = "") -> TableColumn[Measured]:
    """Return the column of a measure: mean and 95 % interval."""
    return TableColumn(
        head or column.head, lambda row: format_estimate(column, row.measure(column))
    )


class Anchor(NamedTuple):
    """Line of an attacker who gets no message: no bits beyond the label, by definition."""

    label: str
    measures: dict[str, float | None]

    def measure(self, column: Column) -> Estimate:
        """Return the exact value of a measure."""
        return Estimate(self.measures.get(column.key))


def find_anchors(rows: Sequence[BenchRow]) -> tuple[Anchor, Anchor]:
    """Return the anchors of a table: an attacker who knows the label alone, and one with nothing.

    Args:
        rows: Cells of a bench, held to an attack where its error is shown.
    """
    by_label = estimate(row.label_only_identification for row in rows).mean
    choices = (row.identification_candidates for row in rows)
    chance = estimate(1 / count if count else None for count in choices).mean
    label_mse, mean_mse = (
        estimate(row.measure(key) for row in rows).mean for key in ("oracle-mse", "mean-mse")
    )

    def measures(identification: float | None, mse: float | None) -> dict[str, float | None]:
        return {BITS.key: 0.0, IDENTIFICATION.key: identification, MSE.key: mse}

    return (
        Anchor("label only (class means)", measures(by_label, label_mse)),
        Anchor("nothing (mean image)", measures(chance, mean_mse)),
    )


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

    @property
    def caption(self) -> str:
        """Return heading and note, or else the name."""
        return " ".join(filter(None, (self.heading, self.note))) or self.name


def make_table(
    name: str, head: Iterable[str], rows: Iterable[Iterable[str]], words: int = 1
) -> Table:
    """Return a table; ValueError when a row has more or fewer cells than the header."""
    table = Table(name, tuple(head), tuple(tuple(row) for row in rows), words)
    for row in table.rows:
        if len(row) != len(table.head):
            raise ValueError(f"table {name!r}: {row} has {len(row)} cells, not {len(table.head)}")
    return table


def tabulate(
    name: str, columns: Sequence[TableColumn[Row]], rows: Iterable[Row], words: int = 1
) -> Table:
    """Return the table of rows as columns show them."""
    lines = ([column.show(row) for column in columns] for row in rows)
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
    columns = "l" * table.words + "r" * (len(table.head) - table.words)
    return "\n".join(
        [
            r"\begin{table}", r"\centering", rf"\caption{{{escape_latex(table.caption)}}}",
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
