"""Numbers as text, and the table that a terminal shows."""

import textwrap
from pathlib import Path

from sims.report.limits import describe_seeds
from sims.report.read import read_book
from sims.report.summary import Summary, summarise_book
from sims.report.table import format_columns, make_table
from sims.report.words import describe_attack, find_verdict
from sims.results.estimate import Estimate

NOTHING = "–"


def format_number(value: float | None, digits: int) -> str:
    """Return a number with so many decimals, None as a dash."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def format_share(value: float | None) -> str:
    """Return a share as percent with one decimal, without the sign."""
    return format_number(None if value is None else 100 * value, 1)


def format_interval(value: Estimate, digits: int, scale: float = 1) -> str:
    """Return "mean ± half" of the 95 % interval, or the mean where there is none."""
    return _pair(value.mean, value.half, digits, scale)


def format_deviation(value: Estimate, digits: int) -> str:
    """Return "mean ± standard deviation", or the mean of a single value."""
    return _pair(value.mean, value.sd, digits, 1)


def _pair(mean: float | None, after: float | None, digits: int, scale: float) -> str:
    text = format_number(None if mean is None else scale * mean, digits)
    return text if after is None else f"{text} ± {format_number(scale * after, digits)}"


def format_summary(folder: Path) -> str:
    """Return the summary of a bench or run folder as plain text, at most 100 columns wide.

    Raises RunError when files are missing or damaged.
    """
    summaries = summarise_book(read_book(folder))
    chosen = find_verdict(summaries)
    head = ("variant", "accuracy %", "bits beyond label", "picked of M %", "decoder MSE", "worst")
    body = [_cells(summary) for summary in summaries]
    anchors = (("(label only)", "oracle_mse"), ("(mean image)", "mean_mse"))
    for name, key in anchors:
        values = [v for s in summaries if (v := getattr(s, key)) is not None]
        if values:
            mse = format_number(sum(values) / len(values), 4)
            body.append([name, NOTHING, NOTHING, NOTHING, mse, NOTHING])
    said = (chosen.headline, describe_attack(chosen), describe_seeds(summaries))
    parts = [textwrap.fill(part, 96) for part in said if part]
    return "\n\n".join([format_columns(make_table("Summary", head, body)), *parts]) + "\n"


def _cells(summary: Summary) -> list[str]:
    return [
        textwrap.shorten(summary.label, 30, placeholder="…"),
        format_interval(summary.accuracy, 1, 100),
        format_interval(summary.bits, 2),
        format_interval(summary.identification, 1, 100),
        format_deviation(summary.decoder_mse, 4),
        name_worst_attacks(summary),
    ]


def name_worst_attacks(summary: Summary) -> str:
    """Name the worst attacks of its seeds, and those that failed and so could not be it."""
    failed = f"{', '.join(summary.failed)} failed" if summary.failed else ""
    return " / ".join([*summary.worst, *([failed] if failed else [])]) or NOTHING
