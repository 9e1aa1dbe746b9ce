"""A chart as files for a paper: SVG, PDF, and as CSV what it shows."""

import csv
from collections.abc import Iterator
from io import BytesIO, StringIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure

from fedcel.files import write_whole
from sims.report.figures import read_label, render_svg

TRUETYPE = 42
"""How fonts are embedded: some journals refuse matplotlib's default, Type 3."""


class ChartPoint(NamedTuple):
    """A point of a chart, with its interval where it has one."""

    panel: str
    """The title of its panel, or the name of the upright axis."""
    series: str
    x: float
    y: float | None = None
    x_low: float | None = None
    x_high: float | None = None
    y_low: float | None = None
    y_high: float | None = None


def write_chart(figure: Figure, folder: Path, name: str) -> None:
    """Write NAME.svg, NAME.pdf and NAME.csv, each whole."""
    write_whole(folder / f"{name}.svg", render_svg(figure, name))
    write_whole(folder / f"{name}.pdf", render_pdf(figure))
    write_whole(folder / f"{name}.csv", format_csv(figure))


def render_pdf(figure: Figure) -> bytes:
    """Return the figure as PDF, the same bytes for the same figure."""
    file = BytesIO()
    no_metadata = dict.fromkeys(("CreationDate", "Creator", "Producer"))
    with rc_context({"pdf.fonttype": TRUETYPE}):
        figure.savefig(file, format="pdf", transparent=True, metadata=no_metadata)
    return file.getvalue()


def format_csv(figure: Figure) -> str:
    """Return the points of all panels; the third column has the axis's name, if they share one."""
    names = {axes.get_xlabel() for axes in figure.axes} - {""}
    across = names.pop() if len(names) == 1 else "x"
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["panel", "series", across, "y", *ChartPoint._fields[4:]])
    writer.writerows(read_points(figure))
    return file.getvalue()


def read_points(figure: Figure) -> list[ChartPoint]:
    """Return what a figure shows: of every line, bar, interval and band that has a label."""
    points: dict[tuple[str, str, float, float | None], ChartPoint] = {}
    for axes in figure.axes:
        bands = {(band.series, band.x): band for band in read_bands(axes)}
        for point in read_panel(axes):
            band = bands.get((point.series, point.x))
            whole = point if band is None else point._replace(y_low=band.y_low, y_high=band.y_high)
            points[whole[:4]] = whole
    return list(points.values())


def read_panel(axes: Axes) -> Iterator[ChartPoint]:
    """Yield the points of a panel's lines and bars, and those with intervals of their own."""
    panel = axes.get_title() or axes.get_ylabel()
    for line in axes.lines:
        if series := read_label(line):
            for x, y in np.asarray(line.get_xydata()).tolist():
                yield ChartPoint(panel, series, x, y)
    for container in axes.containers:
        series = read_label(container)
        if isinstance(container, BarContainer) and series:
            for bar in container.patches:
                yield ChartPoint(panel, series, bar.get_x() + bar.get_width() / 2, bar.get_height())
        if isinstance(container, ErrorbarContainer) and series:
            yield from read_intervals(container, panel, series)


def read_intervals(container: ErrorbarContainer, panel: str, series: str) -> Iterator[ChartPoint]:
    """Yield points with the ends of the bars through them."""
    line, _, bars = container.lines
    assert line is not None, "an interval is drawn through its point"
    ends = [bar.get_segments() for bar in bars]
    across = ends.pop(0) if container.has_xerr else None
    upright = ends.pop(0) if container.has_yerr else None
    for number, (x, y) in enumerate(np.asarray(line.get_xydata()).tolist()):
        point = ChartPoint(panel, series, x, y)
        if across is not None:
            low, high = across[number][:, 0]
            point = point._replace(x_low=float(low), x_high=float(high))
        if upright is not None:
            low, high = upright[number][:, 1]
            point = point._replace(y_low=float(low), y_high=float(high))
        yield point


def read_bands(axes: Axes) -> Iterator[ChartPoint]:
    """Yield the lower and upper end of each band at each of its places."""
    for band in axes.collections:
        series = read_label(band)
        if isinstance(band, PolyCollection) and series:
            ends: dict[float, list[float]] = {}
            for path in band.get_paths():
                for x, y in np.asarray(path.vertices).tolist():
                    ends.setdefault(x, []).append(y)
            for x, heights in ends.items():
                yield ChartPoint("", series, x, y_low=min(heights), y_high=max(heights))
