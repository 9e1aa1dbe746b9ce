"""Summary of a run or bench for a terminal."""

import textwrap
from pathlib import Path

from sims.report import verdict
from sims.report.book import read_book
from sims.report.summary import summarise_book
from sims.report.table import format_columns
from sims.report.tables import TERMINAL, tabulate_anchored


def format_summary(folder: Path) -> str:
    """Return the summary of a bench or run folder as plain text, at most 100 columns wide.

    Raises:
        RunError: Files are missing or damaged.
    """
    summaries = summarise_book(read_book(folder))
    conclusion = verdict.find_verdict(summaries)
    paragraphs = (
        conclusion.sentence,
        verdict.describe_single_image_updates(conclusion),
        verdict.describe_attack(conclusion),
        verdict.describe_seeds(summaries),
        verdict.describe_broken(summaries),
    )
    blocks = [
        textwrap.fill(verdict.describe_left_out(conclusion.runs), 96),
        format_columns(tabulate_anchored("Summary", TERMINAL, summaries)),
        *(textwrap.fill(paragraph, 96) for paragraph in paragraphs),
    ]
    return "\n\n".join([*filter(None, blocks), ""])
