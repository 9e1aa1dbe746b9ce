"""The summary of a run or bench that a terminal shows."""

import textwrap
from pathlib import Path

from sims.report.book import read_book
from sims.report.limits import describe_left_out, describe_seeds
from sims.report.summary import Summary, summarise_book
from sims.report.table import (
    DASH,
    find_summary_anchors,
    format_columns,
    format_deviation,
    format_interval,
    make_table,
)
from sims.report.verdict import (
    describe_attack,
    describe_single_image_updates,
    find_verdict,
)
from sims.results import ACCURACY, BITS, IDENTIFICATION, MSE

COLUMNS = (ACCURACY, BITS, IDENTIFICATION, MSE)
"""What stands between the label and the worst attack; the MSE is the decoder's."""


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
    for anchor in find_summary_anchors(summaries):
        rows.append([anchor.name, *anchor.format_cells(COLUMNS), DASH])
    paragraphs = (
        verdict.headline,
        describe_single_image_updates(verdict),
        describe_attack(verdict),
        describe_seeds(summaries),
    )
    left_out = describe_left_out(run for summary in summaries for run in summary.runs)
    return "\n\n".join(
        [
            *([textwrap.fill(left_out, 96)] if left_out else []),
            format_columns(make_table("Summary", head, rows)),
            *(textwrap.fill(paragraph, 96) for paragraph in paragraphs if paragraph),
            "",
        ]
    )


def name_worst_attacks(summary: Summary) -> str:
    """Name the worst attacks of its seeds, and those that failed and so could not be it."""
    failed = [f"{', '.join(summary.failed)} failed"] if summary.failed else []
    return " / ".join([*summary.worst, *failed]) or DASH
