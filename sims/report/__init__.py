"""One self-contained page, and figures, from a finished run or bench."""

from sims.report.page import format_summary, write_report
from sims.report.tables import format_attack_rows, format_live_table

__all__ = ["format_attack_rows", "format_live_table", "format_summary", "write_report"]
