"""Draw what a decoder rebuilds: `cifar_pictures.py UNDEFENDED WIDE NARROW`.

These are run folders of `cifar-full.toml`, of the variants `none`, `noise` and `narrow`, after
`fedcel attack RUN --set attack.names=decoder`.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer
from matplotlib.figure import Figure

from fedcel.errors import RunError
from sims.commands.main import main
from sims.report.book import read_book
from sims.report.chart import INK
from sims.report.summary import Images

DOCS = Path(__file__).parents[2]
COLUMNS, SIDE, GAP = 10, 0.62, 0.3
"""Images in a row, inches of each, and inches between rows."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def read_images(folder: Path) -> dict[str, Images]:
    """Return the targets, their class means and the decoder's images; RunError without these."""
    (summary,) = read_book(folder).summaries
    images = summary.runs[0].images
    if "decoder" not in images:
        raise RunError(
            f"{folder} has no images of a decoder; run `fedcel attack {folder} --set "
            "attack.names=decoder`"
        )
    return {name: images[name] for name in ("targets", "class-mean", "decoder")}


def draw_rows(rows: dict[str, Images]) -> Figure:
    """Draw a row of images below each name."""
    figure = Figure(figsize=(SIDE * COLUMNS, (SIDE + GAP) * len(rows)))
    grid = figure.subplots(len(rows), COLUMNS)
    figure.subplots_adjust(0.01, 0.01, 0.99, 0.95, wspace=0.08, hspace=GAP / SIDE)
    for line, (name, images) in zip(grid, rows.items(), strict=True):
        line[0].set_title(name, loc="left", fontsize=10, color=INK).set_in_layout(False)
        for axes, image in zip(line, images[:COLUMNS], strict=True):
            axes.imshow(image.clip(0, 1).transpose(1, 2, 0))
            axes.set_axis_off()
    return figure


@app.command()
def cifar_pictures(
    undefended: Annotated[Path, typer.Argument(help="Run without a defence.")],
    wide: Annotated[Path, typer.Argument(help="Run with 512 values.")],
    narrow: Annotated[Path, typer.Argument(help="Run with 16 values.")],
    out: Annotated[Path, typer.Argument(help="Folder of the figure.")] = DOCS / "figures",
) -> None:
    """Draw targets, what is rebuilt of them, and class means."""
    plain, many, few = map(read_images, (undefended, wide, narrow))
    rows = {
        "sent": many["targets"],
        "rebuilt without a defence": plain["decoder"],
        "rebuilt from 512 values with noise": many["decoder"],
        "rebuilt from 16 values with noise": few["decoder"],
        "mean of the class": many["class-mean"],
    }
    draw_rows(rows).savefig(out / "cifar-reconstructions.png", dpi=110)


if __name__ == "__main__":
    sys.exit(main(app=app, name="cifar_pictures.py"))
