"""The command `table`: compare variants at matched accuracy."""

from typing import Annotated

import typer

from fedcel.extras import require_extra
from sims.commands.options import (
    Against,
    BenchFolder,
    TableFile,
    write_or_print,
)

EXAMPLES = (
    "fedcel table BENCH --loss 0,2",
    "fedcel table BENCH --against none --out table.md",
    "fedcel table BENCH --latex --out table.tex",
)


def table_command(
    folder: BenchFolder,
    against: Against = None,
    loss: Annotated[str, typer.Option(help="Points of accuracy given up.")] = "0,2,5",
    latex: Annotated[
        bool, typer.Option("--latex", help="Write LaTeX, for the package booktabs.")
    ] = False,
    out: TableFile = None,
) -> None:
    """Compare a bench's variants at matched accuracy."""
    require_extra("report")
    from fedcel.files import check_writable
    from sims.progress import show_steps
    from sims.report import matched_table

    check_writable(*filter(None, [out]))
    with show_steps("comparing the variants"):
        text = matched_table.make_matched_tables(folder, loss, against, latex=latex)
    write_or_print(text, out)
