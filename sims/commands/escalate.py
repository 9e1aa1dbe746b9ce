"""The command `escalate`: run stronger attacks where they decide."""

from typing import Annotated

import typer

from fedcel.extras import require_extra
from sims.commands.interruption import RepeatHint, explain_interruption
from sims.commands.options import (
    Assignments,
    BenchFolder,
    Jobs,
    TableFile,
    parse_positive_numbers,
    write_or_print,
)
from sims.overrides import parse_overrides

EXAMPLES = ("fedcel escalate BENCH --budgets 4,10",)


def escalate_command(
    context: typer.Context,
    folder: BenchFolder,
    assignments: Assignments = None,
    loss: Annotated[float, typer.Option(help="Points of accuracy given up.")] = 2,
    budgets: Annotated[
        str,
        typer.Option(
            help="Budgets at which the worst attack is run once more, such as 4,10.",
            show_default=False,
        ),
    ] = "",
    every: Annotated[
        bool, typer.Option("--every", help="Attack all strengths, for the table's curves.")
    ] = False,
    jobs: Jobs = 1,
    out: TableFile = None,
) -> None:
    """Run stronger attacks on a bench's variants at matched accuracy."""
    require_extra("simulation")
    from fedcel.files import check_writable
    from sims.bench.escalate import escalate
    from sims.report import write_report

    check_writable(*filter(None, [out]))
    overrides, efforts = parse_overrides(assignments), parse_positive_numbers("--budgets", budgets)
    with explain_interruption(RepeatHint("attacked cells", context.obj)):
        text = escalate(folder, overrides, loss, efforts, jobs=jobs, all_strengths=every)
    write_or_print(text, out)
    print(f"report: {write_report(folder)}")
