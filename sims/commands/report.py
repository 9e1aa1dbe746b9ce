"""The command `report`: draw the report again."""

from fedcel.extras import require_extra
from sims.commands.options import FinishedFolder

EXAMPLES = ("fedcel report RUN",)


def report_command(folder: FinishedFolder) -> None:
    """Draw the report of a run or a bench again: report.html, and each chart in figures/."""
    require_extra("report")
    from sims.report import write_report

    print(f"report: {write_report(folder)}")
