"""The command `report`: draw the report again."""

from pathlib import Path
from typing import Annotated

from fedcel.extras import require_extra
from sims.commands.options import FinishedFolder, option

EXAMPLES = ("fedcel report RUN", "fedcel report BENCH --charts charts")


def report_command(
    folder: FinishedFolder,
    charts: Annotated[
        Path | None, option(metavar="FOLDER", help="Folder for each chart as SVG, PDF and CSV.")
    ] = None,
) -> None:
    """Draw the report of a run or a bench again."""
    require_extra("report")
    from sims.report import write_report

    print(f"report: {write_report(folder, charts)}")
    if charts is not None:
        print(f"charts: {charts}")
