"""One self-contained page, and figures, from a finished run or bench."""

from sims.report.live import format_live_table
from sims.report.page import write_report
from sims.report.tables import format_attack_rows
from sims.report.text import format_summary

__all__ = ["format_attack_rows", "format_live_table", "format_summary", "write_report"]
