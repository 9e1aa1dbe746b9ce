"""Draw the error of attacks against the linearised one: `predicted_errors.py [FOLDER]`.

It reads the kept rows of `leakage_measures.py`.
"""

import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedcel.files import read_json
from leakage_measures import ROWS_FILE
from sims.report.chart import (
    COLOURS,
    FAINT,
    MARKERS,
    Chart,
    Point,
    Series,
    write_chart,
)

DOCS = Path(__file__).parents[2]
NAME = "predicted-errors"
NAMES = {
    "digits": "digits, five nets, three seeds",
    "fashion": "Fashion-MNIST, four nets",
    "cifar10": "CIFAR-10, three cuts, two noises",
    "photographs": "photographs, EfficientNet-Lite0",
}
"""Data sets as the legend names them."""
ROOM = 1.06
"""Ends of the axes, in units of the largest error."""


def make_chart(rows: Sequence[Mapping[str, Any]]) -> Chart:
    """Return the chart: above the line of equal errors the attack does worse than the estimate."""
    series, ends = [], []
    for number, (data, name) in enumerate(NAMES.items()):
        points = [
            Point(row["linearised-mse"], row["best-mse"], name=describe_encoder(row))
            for row in rows
            if row["data"] == data and row["what"] == "encoder"
        ]
        ends += [end for point in points for end in point[:2]]
        if points:
            look = {"color": COLOURS[number], "marker": MARKERS[number], "linestyle": "none"}
            series.append(Series(name, look, points, "marks"))
    end = ROOM * max(ends)
    diagonal = Series("", {"color": FAINT, "linestyle": "--"}, [Point(0.0, 0.0), Point(end, end)])
    axis = {
        "xlabel": "linearised squared error, an estimate",
        "ylabel": "squared error of the best attack",
        "xlim": (0.0, end),
        "ylim": (0.0, end),
    }
    return Chart([diagonal, *series], axis)


def describe_encoder(row: Mapping[str, Any]) -> str:
    """Return the name of an encoder in the list of points."""
    level = "" if row["strength"] is None else f", noise {row['strength']:g} rms"
    return f"{row['data']}: {row['name']}{level}, seed {row['seed']}"


def digest_points(chart: Chart) -> str:
    """Return what changes with the points and their names."""
    lines = [
        f"{point.name} {point.x:.5f} {point.y:.5f}"
        for series in chart.series
        for point in series.points
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def write_figure(rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Draw the figure into a folder; it says what points it shows."""
    chart = make_chart(rows)
    write_chart(chart, folder, NAME)
    with (folder / f"{NAME}.svg").open("a") as svg:
        svg.write(f"<!-- points {digest_points(chart)} -->\n")


if __name__ == "__main__":
    kept: Any = read_json(DOCS / "results" / ROWS_FILE)
    write_figure(kept, Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS / "figures")
