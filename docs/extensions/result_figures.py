"""Draw accuracy against bits from the kept rows: python docs/extensions/result_figures.py.

A figure of `docs/figures` has two panels of the same axes: losses on the left, rivals on the right,
noise alone and the undefended net in both. A variant has one colour and one marker in all figures.
"""

import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from result_rows import compare_variants

from sims.report.chart import INK, Chart, Look, Mark, Point, Series, write_chart
from sims.report.figures import Sweep, make_accuracy_panel, place_point
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
    return {
        variant: Sweep(
            Series(NAMES[variant], LOOKS[variant], placed, "marks"), variant in undefended
        )
        for variant, placed in points.items()
    }


def find_cap(rows: Sequence[BenchRow]) -> float:
    """Return the most bits beyond the label that there are."""
    return max(row.bits_cap for row in rows if row.bits_cap is not None)


def make_chart(sweeps: Mapping[str, Sweep], cap: float) -> Chart:
    """Return both panels; up and left is better."""
    marks = [Mark(0.0, "label only", "--"), Mark(cap, "all of it", ":")]
    limits = {"xlim": (-0.06 * cap, 1.04 * cap)}
    panels = [
        make_accuracy_panel(
            [sweeps[name].series for name in variants if name in sweeps],
            sweeps.values(), marks, limits,
        )._replace(title=title)
        for title, variants in PANELS.items()
    ]  # fmt: skip
    label = "bits beyond the label that leak (less is better)"
    return Chart(label, panels, is_wide=True)


def digest_points(sweeps: Mapping[str, Sweep]) -> str:
    """Return what changes with what is drawn, and with nothing else."""

    def find_half(low: float | None, high: float | None) -> float | None:
        return None if low is None or high is None else (high - low) / 2

    numbers = (
        (variant, series.look, p.x, p.y, find_half(p.x_low, p.x_high), find_half(p.y_low, p.y_high))
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
        write_chart(make_chart(sweeps, find_cap(compare_variants(file).rows)), folder, name)
        with (folder / f"{name}.svg").open("a") as svg:
            svg.write(f"<!-- points {digest_points(sweeps)} -->\n")


if __name__ == "__main__":
    write_figures(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
