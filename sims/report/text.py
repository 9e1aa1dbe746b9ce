"""Numbers as text, and the table that a terminal shows."""

import textwrap
from pathlib import Path

from sims.report.limits import describe_seeds
from sims.report.read import read_book
from sims.report.summary import Summary, summarise_book
from sims.report.table import format_columns, make_table
from sims.report.words import describe_attack, find_verdict
from sims.results.estimate import Estimate, estimate

DASH = "–"


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


def format_summary(folder: Path) -> str:
    """Return the summary of a bench or run folder as plain text, at most 100 columns wide.

    Raises:
        RunError: Files are missing or damaged.
    """
    summaries = summarise_book(read_book(folder))
    verdict = find_verdict(summaries)
    head = ("variant", "accuracy %", "bits beyond label", "picked of M %", "decoder MSE", "worst")
    rows = [
        [
            textwrap.shorten(summary.label, 30, placeholder="…"),
            format_interval(summary.accuracy, 1, 100),
            format_interval(summary.bits, 2),
            format_interval(summary.identification, 1, 100),
            format_deviation(summary.decoder_mse, 4),
            name_worst_attacks(summary),
        ]
        for summary in summaries
    ]
    for name, errors in (
        ("(label only)", [s.oracle_mse for s in summaries]),
        ("(mean image)", [s.mean_mse for s in summaries]),
    ):
        error = estimate(errors).mean
        if error is not None:
            rows.append([name, DASH, DASH, DASH, format_number(error, 4), DASH])
    paragraphs = (verdict.headline, describe_attack(verdict), describe_seeds(summaries))
    return "\n\n".join(
        [
            format_columns(make_table("Summary", head, rows)),
            *(textwrap.fill(paragraph, 96) for paragraph in paragraphs if paragraph),
            "",
        ]
    )


def name_worst_attacks(summary: Summary) -> str:
    """Name the worst attacks of its seeds, and those that failed and so could not be it."""
    failed = [f"{', '.join(summary.failed)} failed"] if summary.failed else []
    return " / ".join([*summary.worst, *failed]) or DASH
