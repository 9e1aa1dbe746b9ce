"""Draw accuracy against bits from the kept rows: python docs/extensions/result_figures.py.

Each data set has two charts of the same axes in `docs/figures`: losses, and rivals, noise alone and
the undefended net in both. CIFAR-10 in full has one of all variants and one of three cuts, of the
population bound, because nearly all exact bits of its middle cut are at their maximum, and one of
the deep cut, of exact bits. A variant has one colour and one marker in all charts; in that of the
cuts, each cut has a colour.
"""

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from result_rows import compare_variants

from sims.report.chart import INK, Chart, Note, write_chart
from sims.report.figures import Looks, make_bits_trade_off, make_trade_off
from sims.report.summary import Summary
from sims.results.columns import find_columns

FOLDER = Path(__file__).parents[1] / "figures"
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
    "ceb": ("#2f8f9d", "h", "-."),
    "cluster-noise": ("#e58f5f", "d", ":"),
    "cluster-long": ("#8c3f00", "x", ":"),
    "narrow": ("#b8336a", "H", "--"),
    "narrow-cluster": ("#6b8e23", "8", ":"),
}
"""Colour, marker and line."""
CHARTS: Mapping[str, Sequence[str]] = {
    "losses": ("none", "plain", "cluster", "gated", "information", "noise"),
    "rivals": ("none", "noise", "bottleneck", "dropout", "nopeek", "adversarial", "noise-nopeek"),
}
FULL: Mapping[str, Sequence[str]] = {
    "all": (
        *("none", "noise", "plain", "cluster", "ceb", "cluster-noise"),
        *("narrow", "narrow-cluster"),
    ),
}
DEEP: Mapping[str, Sequence[str]] = {
    "losses": ("none", "noise", "plain", "cluster", "gated", "cluster-noise", "cluster-long"),
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
    "ceb": "CEB",
    "cluster-noise": "cluster, more noise",
    "cluster-long": "cluster, trained longer",
    "narrow": "noise, 16 values",
    "narrow-cluster": "cluster, 16 values",
}
CUTS = {
    "shallow": ("frontier-cifar-shallow.json", "#0072b2"),
    "middle": ("frontier-cifar-full.json", "#c98500"),
    "deep": ("frontier-cifar-deep.json", "#009e73"),
}
"""Rows and colour of each cut."""
CUT_VARIANTS = ("none", "noise", "plain", "cluster", "narrow")
BITS_SHOWN = (1.0, 1000.0)
"""Ends of the axis of the population bound."""


def make_population_trade_off(summaries: Sequence[Summary], looks: Looks) -> Chart:
    """Chart accuracy against the population bound, on a logarithmic axis."""
    (column,) = find_columns("population-beyond-label")
    label = "population bound, bits beyond the label (less is better)"
    chart = make_trade_off(summaries, looks, column, label=label, marks=())
    return chart._replace(axis={**chart.axis, "xscale": "log", "xlim": BITS_SHOWN})


class Frontier(NamedTuple):
    """Kept rows, the variants of each of their charts, and what these show."""

    file: str
    charts: Mapping[str, Sequence[str]] = CHARTS
    make: Callable[[Sequence[Summary], Looks], Chart] = make_bits_trade_off


FRONTIERS = {
    "frontier-digits": Frontier("defences.json"),
    "frontier-fashion": Frontier("frontier-fashion.json"),
    "frontier-faces": Frontier("frontier-faces.json"),
    "frontier-cifar": Frontier("frontier-cifar.json"),
    "frontier-cifar-full": Frontier("frontier-cifar-full.json", FULL, make_population_trade_off),
    "frontier-cifar-deep": Frontier("frontier-cifar-deep.json", DEEP),
}


def make_chart(frontier: Frontier) -> Chart:
    """Return the chart of all variants, each with its points by rising strength."""
    bench = compare_variants(frontier.file)
    rows = [row.model_copy(update={"title": NAMES.get(row.variant)}) for row in bench.rows]
    groups: dict[tuple[str, float | None], list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(row.point, []).append(number)
    summaries = [
        Summary(variant, [rows[number] for number in numbers], (), bench.measured[:, numbers])
        for (variant, _), numbers in groups.items()
    ]
    style = ("color", "marker", "linestyle")
    looks = {name: dict(zip(style, look, strict=True)) for name, look in LOOKS.items()}
    return frontier.make(summaries, looks)


def make_cuts_chart() -> Chart:
    """Return the chart of the same variants at all cuts."""
    whole = {
        cut: make_chart(Frontier(file, make=make_population_trade_off))
        for cut, (file, _) in CUTS.items()
    }
    series = [
        one._replace(name=f"{cut}: {NAMES[variant]}", look={**one.look, "color": CUTS[cut][1]})
        for cut, chart in whole.items()
        for variant in CUT_VARIANTS
        for one in chart.series
        if one.name == NAMES[variant]
    ]
    axis = {**whole["middle"].axis, "xlim": (1.0, 30_000.0)}
    notes = [
        Note(f"↓ {point.y:.0f} %", point.x, one.look["color"])
        for one in series
        for point in one.points
        if point.y <= axis["ylim"][0]
    ]
    return Chart(series, axis, notes=notes)


def split_chart(chart: Chart, charts: Mapping[str, Sequence[str]] = CHARTS) -> dict[str, Chart]:
    """Return the charts of some variants each, on the axes of all."""
    parts = {}
    for part, variants in charts.items():
        names = [NAMES[variant] for variant in variants]
        series = [one for name in names for one in chart.series if one.name == name]
        colours = {LOOKS[variant][0] for variant in variants}
        notes = [note for note in chart.notes if note.colour in colours]
        parts[part] = chart._replace(series=series, notes=notes)
    return parts


def digest_points(chart: Chart) -> str:
    """Return what changes with what is drawn, and with nothing else."""
    numbers = (
        (series.name, series.look, p.x, p.y, p.x_half, p.y_half)
        for series in chart.series
        for p in series.points
    )
    lines = (
        " ".join(f"{part:.3f}" if isinstance(part, float) else str(part) for part in line)
        for line in numbers
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def list_figures() -> Iterator[tuple[str, Chart, str]]:
    """Yield the name of every figure, its chart, and the digest of the points behind it."""
    for name, frontier in FRONTIERS.items():
        chart = make_chart(frontier)
        for part, drawing in split_chart(chart, frontier.charts).items():
            yield f"{name}-{part}", drawing, digest_points(chart)
    cuts = make_cuts_chart()
    yield "frontier-cifar-cuts", cuts, digest_points(cuts)


def write_figures(folder: Path) -> None:
    """Draw every figure into a folder; each says what points it shows."""
    for name, chart, digest in list_figures():
        write_chart(chart, folder, name)
        with (folder / f"{name}.svg").open("a") as svg:
            svg.write(f"<!-- points {digest} -->\n")


if __name__ == "__main__":
    write_figures(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
