"""One table model, drawn as Markdown, LaTeX, terminal columns; HTML: `macros.html.jinja`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from textwrap import shorten
from typing import NamedTuple

from sims.results.columns import BITS, IDENTIFICATION, MSE, ORACLE_MSE, Column
from sims.results.intervals import Estimate, estimate
from sims.results.records import BenchRow, attribute

DASH = "–"
NO_LIMIT = "no limit"
LABEL_ONLY, NO_MESSAGE = "label only (class means)", "nothing (mean image)"
"""Attackers who get no message."""
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


def join_numbers(values: Iterable[float | None]) -> str:
    """Return the distinct numbers with slashes between them."""
    return " / ".join(f"{value:g}" for value in sorted({v for v in values if v is not None}))


def format_estimate(column: Column, value: Estimate) -> str:
    """Return the mean and half of its 95 % interval, as the column shows them.

    A whole number that all have in common has no interval.
    """
    if value.mean is None:
        return DASH
    if value.mean > column.useful:
        return NO_LIMIT
    text = format_number(column.scale * value.mean, column.digits)
    if value.half is None or not (value.half or column.digits):
        return text
    return f"{text} ± {format_number(column.scale * value.half, column.digits)}"


class Line(NamedTuple):
    """Line of a table: texts, then a number for each column."""

    texts: tuple[str, ...]
    measure: Callable[[Column], Estimate]


def measure_records(texts: Sequence[str], records: Sequence[object]) -> Line:
    """Return the line of the means, with intervals, over records of one kind."""
    return Line(
        tuple(texts),
        lambda column: estimate(getattr(r, attribute(column.key), None) for r in records),
    )


def make_anchor(label: str, values: Mapping[str, float | None]) -> Line:
    """Return the line of an attacker without a message: its measures by key."""
    return Line((f"*{label}*",), lambda column: Estimate(values.get(column.key)))


def list_anchors(rows: Sequence[BenchRow]) -> list[Line]:
    """Return the lines of attackers without a message: one with the label, and one with nothing.

    No bits leak beyond the label, by definition. `rows` are cells of a bench, held to an attack
    where its error is shown.
    """
    choices = (row.identification_candidates for row in rows)
    label_only = {
        BITS.key: 0.0,
        IDENTIFICATION.key: estimate(row.label_only_identification for row in rows).mean,
        MSE.key: estimate(row.measure(ORACLE_MSE.key) for row in rows).mean,
    }
    nothing = {
        BITS.key: 0.0,
        IDENTIFICATION.key: estimate(1 / count if count else None for count in choices).mean,
        MSE.key: estimate(row.measure("mean-mse") for row in rows).mean,
    }
    return [make_anchor(LABEL_ONLY, label_only), make_anchor(NO_MESSAGE, nothing)]


class Table(NamedTuple):
    """A header and rows of equal length; `words` columns are text and read from the left.

    A text between asterisks is emphasised.
    """

    name: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1


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
    name: str, heads: Sequence[str], columns: Sequence[Column], lines: Iterable[Line]
) -> Table:
    """Return the lines' texts under `heads`, a dash where there is none, then their numbers."""
    count = len(heads)
    rows = [
        [*(*line.texts, *(DASH,) * count)[:count],
         *(format_estimate(column, line.measure(column)) for column in columns)]
        for line in lines
    ]  # fmt: skip
    return make_table(name, (*heads, *(column.head for column in columns)), rows, count)


def format_markdown(table: Table) -> str:
    """Return the table as Markdown; a bar within a cell would end it and is escaped."""
    rule = ["---"] * len(table.head)
    rows = [[cell.replace("|", "\\|") for cell in row] for row in (table.head, rule, *table.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def escape_latex(text: str) -> str:
    """Return text as LaTeX shows it: nothing of it is a command."""
    return text.translate(LATEX)


def format_latex(table: Table) -> str:
    """Return the table as LaTeX, with the rules of the package booktabs and its caption above."""

    def cell(text: str) -> str:
        if len(text) > 2 and text[0] == text[-1] == "*":
            return rf"\emph{{{escape_latex(text[1:-1])}}}"
        # After a line's end TeX would take a bracket or an asterisk for an option of it.
        return ("{}" if text[:1] in ("[", "*") else "") + escape_latex(text)

    head, *rows = (" & ".join(map(cell, row)) + r" \\" for row in (table.head, *table.rows))
    columns = "l" * table.words + "r" * (len(table.head) - table.words)
    return "\n".join(
        [
            r"\begin{table}", r"\centering", rf"\caption{{{escape_latex(table.name)}.}}",
            rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule",
            *rows, r"\bottomrule", r"\end{tabular}", r"\end{table}",
        ]
    )  # fmt: skip


def format_columns(table: Table, longest: int = 1000) -> str:
    """Return lines of equally wide columns, those of words from the left.

    First cells are cut to the `longest` number of letters.
    """
    rows = [list(table.head)]
    rows += ([shorten(r[0].strip("*"), longest, placeholder="…"), *r[1:]] for r in table.rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "  ".join(
            cell.ljust(width) if number < table.words else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
