"""Draw accuracy against bits from the kept rows: python docs/extensions/result_figures.py.

Each data set has two charts of the same axes in `docs/figures`: losses, and rivals, noise alone and
the undefended net in both. A variant has one colour and one marker in all charts.
"""

import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from result_rows import compare_variants

from sims.report.chart import INK, Chart, Mark, Point, Series, write_chart
from sims.report.figures import Sweep, make_accuracy_chart, place_point
from sims.results.columns import ACCURACY, BITS, POSITIONS, Column
from sims.results.intervals import Estimate, estimate_samples
from sims.results.records import BenchRow

FOLDER = Path(__file__).parents[1] / "figures"
FIGURES = {
    "frontier-digits": "defences.json",
    "frontier-fashion": "frontier-fashion.json",
    "frontier-faces": "frontier-faces.json",
    "frontier-cifar": "frontier-cifar.json",
}
"""The rows that each pair of charts shows."""
LOOKS: dict[str, tuple[str, str, str]] = {
    "none": (INK, "o", "-"),
    "plain": ("#0072b2", "s", "-"),
    "cluster": ("#d55e00", "D", "-"),
    "gated": ("#009e73", "^", "-"),
    "information": ("#b0609a", "v", "-"),
    "noise": ("#c98500", "P", "--"),
    "bottleneck": ("#56a5d8", "X", "-."),
    "dropout": ("#8a949e", "*", "-."),
    "nopeek": ("#7a4f1d", "<", "-."),
    "adversarial": ("#a01a2b", ">", "-."),
    "noise-nopeek": ("#5b3fa0", "p", "--"),
}
"""Colour, marker and line."""
CHARTS = {
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


def list_sweeps(file: str) -> dict[str, Sweep]:
    """Return the drawn variants, each with its points by rising strength and 95 % intervals."""
    bench = compare_variants(file)
    groups: dict[tuple[str, float], list[int]] = {}
    for number, row in enumerate(bench.rows):
        if row.variant in LOOKS:
            groups.setdefault((row.variant, row.strength or 0.0), []).append(number)

    def mean(numbers: Sequence[int], column: Column) -> Estimate:
        return estimate_samples(bench.measured[:, numbers, POSITIONS[column.key]])

    points: dict[str, list[Point]] = {}
    for (variant, strength), numbers in sorted(groups.items()):
        name = f"{NAMES[variant]}, {strength:g}"
        point = place_point(name, BITS, mean(numbers, BITS), mean(numbers, ACCURACY))
        if point is not None:
            points.setdefault(variant, []).append(point)
    undefended = {row.variant for row in bench.rows if row.undefended}
    sweeps = {}
    for variant, placed in points.items():
        look = dict(zip(("color", "marker", "linestyle"), LOOKS[variant], strict=True))
        series = Series(NAMES[variant], look, placed, "marks")
        sweeps[variant] = Sweep(series, variant in undefended)
    return sweeps


def find_cap(rows: Sequence[BenchRow]) -> float:
    """Return the most bits beyond the label that there are."""
    return max(row.bits_cap for row in rows if row.bits_cap is not None)


def make_charts(sweeps: Mapping[str, Sweep], cap: float) -> dict[str, Chart]:
    """Return the charts by name; up and left is better."""
    marks = [Mark(0.0, "label only", "--"), Mark(cap, "all of it", ":")]
    label = "bits beyond the label that leak (less is better)"
    axis = {"xlabel": label, "xlim": (-0.06 * cap, 1.04 * cap)}
    shown = {
        name: [sweeps[variant].series for variant in variants if variant in sweeps]
        for name, variants in CHARTS.items()
    }
    return {
        name: make_accuracy_chart(series, sweeps.values(), marks, axis)
        for name, series in shown.items()
    }


def digest_points(sweeps: Mapping[str, Sweep]) -> str:
    """Return what changes with what is drawn, and with nothing else."""
    numbers = (
        (variant, series.look, p.x, p.y, p.x_half, p.y_half)
        for variant, (series, _) in sweeps.items()
        for p in series.points
    )
    lines = (
        " ".join(f"{part:.3f}" if isinstance(part, float) else str(part) for part in line)
        for line in numbers
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def write_figures(folder: Path) -> None:
    """Draw every figure into a folder; each says what points it shows."""
    for name, file in FIGURES.items():
        sweeps = list_sweeps(file)
        charts = make_charts(sweeps, find_cap(compare_variants(file).rows))
        for part, chart in charts.items():
            write_chart(chart, folder, f"{name}-{part}")
            with (folder / f"{name}-{part}.svg").open("a") as svg:
                svg.write(f"<!-- points {digest_points(sweeps)} -->\n")


if __name__ == "__main__":
    write_figures(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
