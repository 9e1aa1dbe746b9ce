"""Draw the picture of README.md: python docs/research/scripts/front_figure.py BENCH.

BENCH is a folder that `fedcel bench digits` wrote; the images are those of its first training seed.
The bits are of the kept rows of which the table beside the picture is drawn.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedcel.errors import RunError
from fedcel.files import write_json
from sims.progress import print_line
from sims.report.book import read_book
from sims.report.chart import COLOURS, FAINT, INK
from sims.report.summary import Images, Summary
from sims.results.intervals import Estimate, estimate
from sims.results.records import BenchRow, read_records

DOCS = Path(__file__).parents[2]
VARIANTS = {"none": "no defence", "cluster": "with a defence (cluster)"}
COLUMNS = 8
WIDTH, HEIGHT, DPI = 8.0, 3.7, 200  # inches, pixels an inch
FONT_SIZE = 11.5  # points: 16 pixels where the picture is 800 wide
BAR_COLOURS = (COLOURS[1], COLOURS[0])


class AttackedVariant(NamedTuple):
    """What the best trained attack made of one variant, and what leaks exactly."""

    name: str
    images: Mapping[str, Images]
    attack: str
    mse: float
    bits: Estimate
    cap: float


def find_variant(
    summaries: Sequence[Summary], rows: Sequence[BenchRow], variant: str
) -> AttackedVariant:
    """Return a variant of a bench; RunError where it was not attacked or has no row."""
    kept_rows = [row for row in rows if row.variant == variant]
    for summary in summaries:
        run = summary.runs[0]
        errors = [(row.mse, row.attack) for row in run.attacks if row.mse is not None]
        errors = [(mse, attack) for mse, attack in errors if attack in run.images]
        if summary.variant == variant and kept_rows and errors and summary.row.bits_cap is not None:
            mse, attack = min(errors)
            bits = estimate(row.bits_beyond_label for row in kept_rows)
            return AttackedVariant(
                VARIANTS[variant], run.images, attack, mse, bits, summary.row.bits_cap
            )
    raise RunError(
        f"{variant!r} is not among the rows, or the bench has no rebuilt images of it; run "
        "`fedcel bench digits` with a trained attack, such as attack.names=decoder"
    )


def draw_front(variants: Sequence[AttackedVariant]) -> Figure:
    """Draw originals, what is rebuilt of them, the class means, and a bar of bits a variant."""
    first = variants[0]
    rows = [("the images", first.images["targets"])]
    rows += [(f"rebuilt: {v.name}", v.images[v.attack]) for v in variants]
    rows.append(("average of the class", first.images["class-mean"]))
    figure = Figure(figsize=(WIDTH, HEIGHT), facecolor="white")
    grid = figure.add_gridspec(
        len(rows), COLUMNS, left=0.015, right=0.60, top=0.93, bottom=0.01, hspace=0.42, wspace=0.06
    )
    for line, (title, images) in enumerate(rows):
        for column in range(COLUMNS):
            place = figure.add_subplot(grid[line, column])
            place.imshow(images[column, 0], cmap="gray", vmin=0, vmax=1)
            place.set_axis_off()
            if column == 0:
                place.set_title(title, loc="left", fontsize=FONT_SIZE, color=INK, pad=4)
    for line, (variant, colour) in enumerate(zip(variants, BAR_COLOURS, strict=True), 1):
        box = grid[line, 0].get_position(figure)
        draw_bar(figure.add_axes((0.64, box.y0, 0.34, box.height)), variant, colour)
    top = grid[0, 0].get_position(figure)
    text = f"What one message tells beyond\nthe label, of {first.cap:.1f} bits"
    figure.text(0.64, top.y0, text, fontsize=FONT_SIZE, color=INK, va="bottom")
    last = grid[len(rows) - 1, 0].get_position(figure)
    text = "0 bits: an attacker who knows\nonly the label"
    figure.text(0.64, last.y1, text, fontsize=FONT_SIZE, color=INK, va="top")
    return figure


def draw_bar(axes: Axes, variant: AttackedVariant, colour: str) -> None:
    """Draw the bits of one variant, out of all that there are."""
    bits, half = variant.bits.mean or 0.0, variant.bits.half
    axes.barh(0.25, variant.cap, 0.42, color=FAINT, alpha=0.25)
    axes.barh(0.25, bits, 0.42, color=colour)
    text = f"{bits:.2f} bits" if half is None else f"{bits:.2f} ± {half:.2f} bits"
    axes.text(0, 0.55, text, fontsize=FONT_SIZE + 1.5, color=INK, va="bottom", weight="bold")
    axes.set(xlim=(0, variant.cap), ylim=(0, 1))
    axes.set_axis_off()


def save_front(bench: Path, rows: Path, out: Path) -> None:
    """Write the picture and the numbers behind it."""
    summaries, kept_rows = read_book(bench).summaries, read_records(rows, BenchRow)
    variants = [find_variant(summaries, kept_rows, name) for name in VARIANTS]
    out.mkdir(parents=True, exist_ok=True)
    draw_front(variants).savefig(out / "front.png", dpi=DPI, metadata={"Software": None})
    numbers = {
        v.name: {"attack": v.attack, "mse": v.mse, "bits": v.bits.mean, "half-width": v.bits.half}
        for v in variants
    }
    write_json(out / "front.json", numbers)
    print_line(f"drawn: {out / 'front.png'}")


if __name__ == "__main__":
    save_front(Path(sys.argv[1]), DOCS / "results" / "digits.json", DOCS / "figures")
