"""Draw accuracy against bits from the kept rows: python docs/extensions/result_figures.py.

A figure of `docs/figures` has two panels of the same axes: losses on the left, rivals on the right,
noise alone and the undefended net in both. A variant has one colour and one marker in all figures.
"""

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from result_rows import compare_variants

from sims.report.chart_files import write_chart
from sims.report.figures import (
    FAINT,
    INK,
    Look,
    Mark,
    Point,
    add_legend,
    crop_collapsed,
    draw_marks,
    draw_variant,
)
from sims.report.summary import Summary
from sims.results.columns import ACCURACY, BITS, POSITIONS, Column
from sims.results.intervals import Estimate, crossed_interval
from sims.results.records import BenchRow

FOLDER = Path(__file__).parents[1] / "figures"
FIGURES = {
    "frontier-digits": "defences.json",
    "frontier-fashion": "frontier-fashion.json",
    "frontier-faces": "frontier-faces.json",
    "frontier-cifar": "frontier-cifar.json",
}
"""The rows that each figure shows."""
LOOKS = {
    "none": Look(INK, "o", "-"),
    "plain": Look("#0072b2", "s", "-"),
    "cluster": Look("#d55e00", "D", "-"),
    "gated": Look("#009e73", "^", "-"),
    "information": Look("#b0609a", "v", "-"),
    "noise": Look("#c98500", "P", "--"),
    "bottleneck": Look("#56a5d8", "X", "-."),
    "dropout": Look("#8a949e", "*", "-."),
    "nopeek": Look("#7a4f1d", "<", "-."),
    "adversarial": Look("#a01a2b", ">", "-."),
    "noise-nopeek": Look("#5b3fa0", "p", "--"),
}
PANELS = {
    "losses": ("none", "plain", "cluster", "gated", "information", "noise"),
    "rivals": ("none", "noise", "bottleneck", "dropout", "nopeek", "adversarial", "noise-nopeek"),
}
NAMES = {
    "none": "no defence",
    "plain": "plain",
    "cluster": "cluster, one centre",
    "gated": "gated",
    "information": "mutual information",
    "noise": "noise alone",
    "bottleneck": "bottleneck",
    "dropout": "dropout",
    "nopeek": "NoPeek",
    "adversarial": "adversarial decoder",
    "noise-nopeek": "noise + NoPeek",
}


def list_points(file: str) -> list[Point]:
    """Return the points of the drawn variants, by variant and strength, with 95 % intervals."""
    bench = compare_variants(file)
    groups: dict[tuple[str, float], list[int]] = {}
    for number, row in enumerate(bench.rows):
        if row.variant in LOOKS:
            groups.setdefault((row.variant, row.strength or 0.0), []).append(number)

    def mean(numbers: Sequence[int], column: Column) -> Estimate:
        values = bench.measured[:, numbers, POSITIONS[column.key]]
        return crossed_interval(values[0], values[1:].mean(1))

    points = []
    for (variant, _), numbers in sorted(groups.items()):
        accuracy, bits = mean(numbers, ACCURACY), mean(numbers, BITS)
        if accuracy.mean is None or bits.mean is None:
            continue
        summary = Summary(variant, (bench.rows[numbers[0]],), ())
        half = None if accuracy.half is None else 100 * accuracy.half
        points.append(
            Point(LOOKS[variant], summary, bits.mean, 100 * accuracy.mean, bits.half, half)
        )
    return points


def find_cap(rows: Sequence[BenchRow]) -> float:
    """Return the most bits beyond the label that there are."""
    return max(row.bits_cap for row in rows if row.bits_cap is not None)


def draw_figure(points: Sequence[Point], cap: float) -> Figure:
    """Draw both panels; up and left is better."""
    figure = Figure(figsize=(9, 4.7), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, (title, variants) in zip(panels, PANELS.items(), strict=True):
        draw_panel(axes, [point for point in points if point.summary.variant in variants], cap)
        axes.set_title(title, color=INK, fontsize=11)
        entries = [(LOOKS[name], NAMES[name]) for name in variants]
        add_legend(axes, entries, lines=True)
    for axes in panels:
        crop_collapsed(
            axes, points, [p for p in points if p.summary.variant in PANELS[axes.get_title()]]
        )
        axes.set_xlim(left=-0.06 * cap, right=1.04 * cap)
    panels[0].set_ylabel("test accuracy, %", color=INK)
    return figure


def draw_panel(axes: Axes, points: Sequence[Point], cap: float) -> None:
    """Draw the variants of a panel, each joined in the order of its strengths."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, color=FAINT)
    axes.grid(color=FAINT, alpha=0.2, linewidth=0.6)
    for variant in dict.fromkeys(point.summary.variant for point in points):
        draw_variant(axes, [point for point in points if point.summary.variant == variant])
    draw_marks(axes, [Mark(0.0, "label only", "--"), Mark(cap, "all of it", ":")])
    axes.set_xlabel("bits beyond the label that leak (less is better)", color=INK)


def digest_points(points: Sequence[Point]) -> str:
    """Return what changes with what is drawn, and with nothing else."""
    numbers = ((p.summary.variant, p.look, p.x, p.y, p.x_half, p.y_half) for p in points)
    lines = (
        " ".join(f"{part:.3f}" if isinstance(part, float) else str(part) for part in line)
        for line in numbers
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def write_figures(folder: Path) -> None:
    """Draw every figure into a folder; each says what points it shows."""
    for name, file in FIGURES.items():
        points = list_points(file)
        write_chart(draw_figure(points, find_cap(compare_variants(file).rows)), folder, name)
        with (folder / f"{name}.svg").open("a") as svg:
            svg.write(f"<!-- points {digest_points(points)} -->\n")


if __name__ == "__main__":
    write_figures(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
