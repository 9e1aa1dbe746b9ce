"""The command `table`: compare variants at matched accuracy."""

from pathlib import Path
from typing import Annotated

import typer

from fedcel.extras import require_extra
from sims.commands.options import BenchFolder, option

EXAMPLES = (
    "fedcel table BENCH --loss 0,2",
    "fedcel table BENCH --against none --out table.md",
    "fedcel table BENCH --latex --out table.tex",
)


def table_command(
    folder: BenchFolder,
    against: Annotated[
        str | None, option(metavar="NAME", help="Also show differences to this variant.")
    ] = None,
    loss: Annotated[
        str, typer.Option(help="Losses of accuracy in points, comma-separated.")
    ] = "0,2,5",
    latex: Annotated[
        bool, typer.Option("--latex", help="Write LaTeX, for the package booktabs.")
    ] = False,
    out: Annotated[
        Path | None, option("--out", help="File for the table; default: print it.")
    ] = None,
) -> None:
    """Compare a bench's variants at matched accuracy."""
    require_extra("report")
    from fedcel.files import check_writable, write_whole
    from sims.progress import show_steps
    from sims.report import matched_table

    if out is not None:
        check_writable(out)
    with show_steps("comparing the variants"):
        text = matched_table.make_matched_tables(folder, loss, against, latex=latex)
    if out is None:
        print(text, end="")
        return
    write_whole(out, text)
    print(f"table: {out}")
