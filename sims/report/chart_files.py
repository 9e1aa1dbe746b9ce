"""A chart as files for a paper: SVG, PDF, and as CSV what it shows."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.container import BarContainer, Container, ErrorbarContainer
from matplotlib.figure import Figure

from fedcel.files import write_whole
from sims.report.figures import METADATA, render_figure
from sims.report.table import format_csv, make_table


class ChartPoint(NamedTuple):
    """A point of a chart, with its interval where it has one.

    `panel` is the title of its panel, or the name of the upright axis.
    """

    panel: str
    series: str
    x: float
    y: float | None = None
    x_low: float | None = None
    x_high: float | None = None
    y_low: float | None = None
    y_high: float | None = None


def write_chart(figure: Figure, folder: Path, name: str) -> None:
    """Write NAME.svg, NAME.pdf and NAME.csv, each whole."""
    for form in METADATA:
        write_whole(folder / f"{name}.{form}", render_figure(figure, name, form))
    write_whole(folder / f"{name}.csv", list_points(figure))


def list_points(figure: Figure) -> str:
    """Return the points of all panels as CSV; the third column is named as a common axis is."""
    names = {axes.get_xlabel() for axes in figure.axes} - {""}
    across = names.pop() if len(names) == 1 else "x"
    head = ["panel", "series", across, *ChartPoint._fields[3:]]
    rows = (["" if v is None else str(v) for v in point] for point in read_points(figure))
    return format_csv(make_table("Points", head, rows))


def read_points(figure: Figure) -> list[ChartPoint]:
    """Return what a figure shows: of every line, bar, interval and band that has a label."""
    points: dict[tuple[str, str, float, float | None], ChartPoint] = {}
    for axes in figure.axes:
        bands = read_bands(axes)
        for point in read_panel(axes):
            low, high = bands.get((point.series, point.x), (point.y_low, point.y_high))
            points[point[:4]] = point._replace(y_low=low, y_high=high)
    return list(points.values())


def read_label(artist: Artist | Container) -> str:
    """Return the label that an artist was given, as it was before `escape_label`, or none."""
    label = str(artist.get_label() or "")
    return "" if label.startswith("_") else label.replace(r"\$", "$").strip()


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
    ends = iter([bar.get_segments() for bar in bars])
    across = next(ends) if container.has_xerr else None
    upright = next(ends) if container.has_yerr else None
    for number, (x, y) in enumerate(np.asarray(line.get_xydata()).tolist()):
        x_ends = (None, None) if across is None else across[number][:, 0].tolist()
        y_ends = (None, None) if upright is None else upright[number][:, 1].tolist()
        yield ChartPoint(panel, series, x, y, *x_ends, *y_ends)


def read_bands(axes: Axes) -> dict[tuple[str, float], tuple[float, float]]:
    """Return the lower and upper end of each band at each of its places, by series and place."""
    heights: dict[tuple[str, float], list[float]] = {}
    for band in axes.collections:
        if isinstance(band, PolyCollection) and (series := read_label(band)):
            for path in band.get_paths():
                for x, y in np.asarray(path.vertices).tolist():
                    heights.setdefault((series, x), []).append(y)
    return {key: (min(values), max(values)) for key, values in heights.items()}
