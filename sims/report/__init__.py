"""One self-contained page, and figures, from a finished run or bench."""

from sims.report.page import write_report
from sims.report.tables import format_attack_rows, format_live_table
from sims.report.terminal_summary import format_summary

__all__ = ["format_attack_rows", "format_live_table", "format_summary", "write_report"]
