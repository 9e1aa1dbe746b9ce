"""The command `uncertainty`: compare posteriors, points and ensembles."""

from pathlib import Path
from typing import Annotated

import typer

from fedcel.extras import require_extra
from sims.commands.options import (
    Against,
    Assignments,
    Jobs,
    Scenario,
    check_folder,
)
from sims.overrides import parse_overrides

EXAMPLES = ("fedcel uncertainty uncertainty --out runs/doubt",)


def uncertainty_command(
    scenario: Scenario,
    out: Annotated[Path, typer.Option(help="Folder of the runs.", show_default=False)],
    assignments: Assignments = None,
    jobs: Jobs = 1,
    against: Against = None,
    outside: Annotated[str, typer.Option(help="`data.source` of strangers' images.")] = "none",
    outside_path: Annotated[str, typer.Option(help="`data.path` of strangers' images.")] = "none",
    shifts: Annotated[
        str, typer.Option(help="Test images that are scored as well: turned, noisy; or none.")
    ] = "none",
) -> None:
    """Compare posteriors, points and ensembles: calibration, and doubt about strangers' images."""
    require_extra("simulation")
    from sims.bench.uncertainty import compare_calibration

    check_folder(out)
    text = compare_calibration(
        scenario,
        out,
        jobs=jobs,
        overrides=parse_overrides(assignments),
        outside=outside,
        outside_path=outside_path,
        against=against,
        shifts=shifts,
    )
    print(text, end="")
