"""A table: how numbers become cells, and how a table is drawn.

The page draws it as HTML (`grid` in grid.html.jinja), documents have it as Markdown, papers as
LaTeX, a terminal as columns.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sims.report.summary import Summary
from sims.results import (
    BITS,
    IDENTIFICATION,
    MSE,
    Column,
    Estimate,
    Measures,
    crossed_interval,
    estimate,
    mean_samples,
)

DASH = "–"
LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
        **{letter: f"\\{letter}" for letter in "&%$#_{}"},
        "–": "--", "≤": r"$\leq$", "≥": r"$\geq$", "≶": r"$\leq$ or $\geq$", "±": r"$\pm$",
        "λ": r"$\lambda$", "σ": r"$\sigma$", "γ": r"$\gamma$", "ε": r"$\varepsilon$",
        "×": r"$\times$", "−": "$-$", "Δ": r"$\Delta$", "α": r"$\alpha$", "β": r"$\beta$",
        "δ": r"$\delta$", "μ": r"$\mu$", "ρ": r"$\rho$", "τ": r"$\tau$", "ξ": r"$\xi$",
        "→": r"$\to$", "≈": r"$\approx$", "∞": r"$\infty$", "·": r"$\cdot$", "…": r"\ldots{}",
    }
)  # fmt: skip
"""How LaTeX writes what it would read as a command, and what pdflatex has no letter for."""


def format_number(value: float | None, digits: int) -> str:
    """Return a number with so many decimals, None as a dash."""
    return DASH if value is None else f"{value:z.{digits}f}"


def format_share(value: float | None) -> str:
    """Return a share as percent with one decimal, without the sign."""
    return format_number(None if value is None else 100 * value, 1)


def format_interval(value: Estimate, digits: int, scale: float = 1) -> str:
    """Return "mean ± half" of the 95 % interval, or the mean where there is none."""
    return _format_spread(value.mean, value.half, digits, scale)


def format_deviation(value: Estimate, digits: int) -> str:
    """Return "mean ± standard deviation", or the mean of a single value."""
    return _format_spread(value.mean, value.sd, digits, 1)


def _format_spread(mean: float | None, spread: float | None, digits: int, scale: float) -> str:
    text = format_number(None if mean is None else scale * mean, digits)
    return text if spread is None else f"{text} ± {format_number(scale * spread, digits)}"


def format_estimate(column: Column, value: Estimate) -> str:
    """Return mean and interval as the column shows them."""
    return format_interval(value, column.digits, column.scale)


def format_crossed(
    column: Column, seeds: Iterable[float | None], images: Iterable[float | None] = ()
) -> str:
    """Return the mean over seeds and its interval over seeds and images (`crossed_interval`)."""
    return format_estimate(column, crossed_interval(seeds, images))


def format_means(
    columns: Iterable[Column],
    rows: Sequence[Measures],
    samples: Sequence[Sequence[Measures]] = (),
) -> list[str]:
    """Return a cell for each column: mean over rows, with its interval.

    `samples` are the rows in bootstrap samples of the test images.
    """
    return [
        format_crossed(c, (row.get(c.key) for row in rows), mean_samples(samples, c.key))
        for c in columns
    ]


class Anchor(NamedTuple):
    """What one reaches who gets no message: no bits beyond the label, by definition."""

    name: str
    identification: float | None
    mse: float | None

    def format_cells(self, columns: Iterable[Column]) -> list[str]:
        """Return a cell for each column."""
        values = {
            BITS.key: 0.0,
            IDENTIFICATION.key: self.identification,
            MSE.key: self.mse,
        }
        return [
            format_estimate(c, Estimate(values[c.key])) if c.key in values else DASH
            for c in columns
        ]


def find_anchors(
    *,
    label_only: Iterable[float | None],
    choices: Iterable[int | None],
    oracle_mse: Iterable[float | None],
    mean_mse: Iterable[float | None],
) -> tuple[Anchor, Anchor]:
    """Return the anchors of a table: who knows the label alone, and who knows nothing.

    Args:
        label_only: How often the label alone identifies an image, of each row.
        choices: Among how many images it is looked for.
        oracle_mse: Error of the mean image of the right class.
        mean_mse: Error of the mean image.
    """
    chance = (1 / count if count else None for count in choices)
    return (
        Anchor("label only (class means)", estimate(label_only).mean, estimate(oracle_mse).mean),
        Anchor("nothing (mean image)", estimate(chance).mean, estimate(mean_mse).mean),
    )


def find_summary_anchors(summaries: Sequence[Summary]) -> tuple[Anchor, Anchor]:
    """Return the anchors of a table of summaries."""
    return find_anchors(
        label_only=(summary.label_only for summary in summaries),
        choices=(summary.choices for summary in summaries),
        oracle_mse=(summary.oracle_mse for summary in summaries),
        mean_mse=(summary.mean_mse for summary in summaries),
    )


class Table(NamedTuple):
    """A header and rows of equal length; `words` columns are text and read from the left."""

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


def format_markdown(table: Table) -> str:
    """Return the table as Markdown; a bar within a cell would end it and is escaped."""
    rule = ["---"] * len(table.head)
    rows = [[cell.replace("|", "\\|") for cell in row] for row in (table.head, rule, *table.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


class CaptionedTable(NamedTuple):
    """A table with its heading and a note: either may be empty."""

    heading: str
    note: str
    table: Table


def format_captioned(captioned: CaptionedTable) -> str:
    """Return heading, note and table as Markdown."""
    heading = f"**{captioned.heading}**" if captioned.heading else ""
    caption = " ".join(filter(None, (heading, captioned.note)))
    return f"{caption}\n\n{format_markdown(captioned.table)}"


def escape_latex(text: str) -> str:
    """Return text as LaTeX shows it: nothing of it is a command."""
    return text.translate(LATEX)


def format_latex(captioned: CaptionedTable) -> str:
    """Return the table as LaTeX, with the rules of the package booktabs and its caption above.

    A cell between asterisks, which Markdown emphasises, is emphasised.
    """
    table = captioned.table
    caption = " ".join(filter(None, (captioned.heading, captioned.note))) or table.name

    def cell(text: str) -> str:
        if len(text) > 2 and text[0] == text[-1] == "*":
            return rf"\emph{{{escape_latex(text[1:-1])}}}"
        # After a line's end TeX would take a bracket or an asterisk for an option of it.
        return ("{}" if text[:1] in ("[", "*") else "") + escape_latex(text)

    def line(row: Sequence[str]) -> str:
        return " & ".join(map(cell, row)) + r" \\"

    columns = "l" * table.words + "r" * (len(table.head) - table.words)
    return "\n".join(
        [
            r"\begin{table}", r"\centering", rf"\caption{{{escape_latex(caption)}}}",
            rf"\begin{{tabular}}{{{columns}}}", r"\toprule", line(table.head), r"\midrule",
            *map(line, table.rows), r"\bottomrule", r"\end{tabular}", r"\end{table}",
        ]
    )  # fmt: skip


def format_columns(table: Table) -> str:
    """Return lines of equally wide columns, those of words from the left."""
    widths = [max(map(len, column)) for column in zip(table.head, *table.rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.ljust(width) if number < table.words else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(table.head), rule, *map(line, table.rows)])
