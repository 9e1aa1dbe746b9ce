"""One self-contained page, and figures, from a finished run or bench."""

from sims.report.live import answers
from sims.report.page import write
from sims.report.tables import found
from sims.report.text import table

__all__ = ["answers", "found", "table", "write"]
