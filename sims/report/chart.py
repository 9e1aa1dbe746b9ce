"""A chart as data: panels of named points, drawn by matplotlib and listed as CSV.

Colours are safe for the colour-blind, and never without a marker or a kind of line.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedcel.files import write_whole
from sims.report.table import format_csv, make_table

INK = "#26323d"
FAINT = "#8a949e"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b0609a", "#56a5d8", "#c98500")  # Okabe-Ito, darkened
MARKERS = "osD^vPX*"
Line = Literal["-", "--", "-.", ":", "none"]
LINES: tuple[Line, ...] = ("-", "--", "-.")
STYLE: dict[Any, Any] = {
    **dict.fromkeys(("axes.edgecolor", "grid.color", "xtick.color", "ytick.color"), FAINT),
    **dict.fromkeys(("axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    "axes.labelsize": 11,
    "axes.grid": True,
    "grid.alpha": 0.2,
    "grid.linewidth": 0.6,
    "legend.fontsize": 9.5,
    "legend.labelcolor": INK,
}
METADATA: dict[Literal["svg", "pdf"], tuple[str, ...]] = {
    "svg": ("Date", "Creator", "Format", "Type"),
    "pdf": ("CreationDate", "Creator", "Producer"),
}
"""Metadata that would differ from one drawing to the next."""
TRUETYPE = 42
"""Format of embedded fonts: some journals refuse matplotlib's default, Type 3."""
WIDTH = 5.0  # inches: text stays readable when a phone shrinks the figure
LEGEND_ROW = 0.26  # inches
WIDE_LABEL = 24
"""Letters of a name beside which a second one has no room in a legend."""
MAX_LABEL = 52
"""Letters that a legend has room for."""


class Look(NamedTuple):
    """Colour, marker and line of one variant in every chart."""

    colour: str
    marker: str
    line: Line
    filled: bool = True

    @property
    def style(self) -> dict[str, Any]:
        """Colour, marker and line in matplotlib's words."""
        fill = "full" if self.filled else "none"
        return {
            "color": self.colour,
            "marker": self.marker,
            "linestyle": self.line,
            "fillstyle": fill,
        }


def choose_look(index: int) -> Look:
    """Return the look of the variant at this place; 24 differ, then come again as outlines."""
    look = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)], LINES[index % len(LINES)]
    return Look(*look, filled=index // 24 % 2 == 0)


class Point(NamedTuple):
    """A point with its intervals, and a name where that is not the name of its series."""

    x: float
    y: float
    x_low: float | None = None
    x_high: float | None = None
    y_low: float | None = None
    y_high: float | None = None
    name: str = ""


class Series(NamedTuple):
    """Points of one look; without a name they are an aid to the eye, and in no legend or CSV.

    `form`: `line`, with a band between the ends of the intervals, or `marks`, with each point's own
    interval and a thin line.
    """

    name: str
    look: Look
    points: Sequence[Point]
    form: Literal["line", "marks"] = "line"


class Mark(NamedTuple):
    """A line across a panel at one value, upright or level, and its name beside it."""

    at: float
    name: str = ""
    line: Line = ":"
    colour: str = FAINT
    is_level: bool = False


class Note(NamedTuple):
    """Text at the foot of a panel."""

    text: str
    x: float
    colour: str


class Panel(NamedTuple):
    """Series over one pair of axes.

    `axis` are properties of the axes in matplotlib's words, such as limits and scales.
    """

    label: str
    series: Sequence[Series]
    marks: Sequence[Mark] = ()
    notes: Sequence[Note] = ()
    axis: Mapping[str, Any] = {}
    height: float = 3.2
    """In inches."""
    title: str = ""


class Chart(NamedTuple):
    """Panels below one another that share their level axis.

    `is_wide`: beside one another, with the same axes and a legend each.
    """

    label: str
    panels: Sequence[Panel]
    is_wide: bool = False


def draw_chart(chart: Chart) -> Figure:
    """Draw a chart."""
    panels, is_wide = chart.panels, chart.is_wide
    heights = [panel.height + legend_height(panel) for panel in panels]
    size = (1.8 * WIDTH, max(heights)) if is_wide else (WIDTH, sum(heights))
    grid: dict[str, Any] = {"nrows": len(panels), "height_ratios": heights}
    if is_wide:
        grid = {"ncols": len(panels), "sharey": True}
    with rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        places = figure.subplots(sharex=True, squeeze=False, **grid).flat
        for axes, panel in zip(places, panels, strict=True):
            draw_panel(axes, panel)
            if is_wide:
                position = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.17)}
                add_legend(axes, panel.series, position)
            if is_wide or panel is panels[-1]:
                axes.set_xlabel(chart.label)
            axes.tick_params(labelbottom=is_wide or panel is panels[-1])
        if not is_wide:
            series = [series for panel in panels for series in panel.series]
            add_legend(figure, series, {"loc": "outside lower center"})
    return figure


def draw_panel(axes: Axes, panel: Panel) -> None:
    """Draw the series of a panel, its marks and its notes."""
    for series in panel.series:
        draw_series(axes, series)
    axes.set(ylabel=panel.label, **panel.axis)
    axes.set_title(panel.title, color=INK, fontsize=11)
    for mark in panel.marks:
        line = axes.axhline if mark.is_level else axes.axvline
        line(mark.at, color=mark.colour, linewidth=1, linestyle=mark.line)
        if mark.name:  # higher than the notes at the foot
            style = {"xytext": (-3, 0), "ha": "right", "rotation": 90}
            write_note(axes, mark.name, (mark.at, 0.3), color=INK, **style)
    for number, note in enumerate(sorted(panel.notes, key=lambda note: note.x)):
        place = (0, 14 + 12 * (number % 3))  # or the texts of neighbours would overlap
        write_note(axes, note.text, (note.x, 0), xytext=place, color=note.colour, ha="center")


def write_note(axes: Axes, text: str, xy: tuple[float, float], **style: Any) -> None:
    """Write a text at x and a share of the panel's height, moved by so many points."""
    place: Any = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
    axes.annotate(text, xy, fontsize=8.5, va="bottom", **place, **style)


def draw_series(axes: Axes, series: Series) -> None:
    """Draw the points of a series."""
    look, points = series.look, series.points
    xs, ys = [point.x for point in points], [point.y for point in points]
    if series.form == "marks":
        x_half = [math.nan if p.x_high is None else p.x_high - p.x for p in points]
        y_half = [math.nan if p.y_high is None else p.y_high - p.y for p in points]
        size: dict[str, Any] = {"markersize": 8, "elinewidth": 1, "capsize": 2, "linewidth": 0.9}
        axes.errorbar(xs, ys, xerr=x_half, yerr=y_half, **size, **look.style)
    else:
        every = max(1, len(points) // 6)
        axes.plot(xs, ys, markersize=5, markevery=every, linewidth=1.4, **look.style)
        ends = [(p.y_low, p.y_high) for p in points if p.y_low is not None]
        if any(low != high for low, high in ends):
            low, high = zip(*ends, strict=True)
            axes.fill_between(xs, low, high, color=look.colour, alpha=0.15, linewidth=0)


def count_columns(names: Iterable[str]) -> int:
    """Return how many names stand side by side in a legend."""
    lengths = list(map(len, names))
    return 1 if max(lengths) > WIDE_LABEL else min(2, len(lengths))


def legend_height(panel: Panel) -> float:
    """Return the inches that the names of a panel take below it."""
    names = {series.name for series in panel.series} - {""}
    return LEGEND_ROW * -(-len(names) // count_columns(names)) if names else 0


def add_legend(place: Figure | Axes, series: Iterable[Series], position: dict[str, Any]) -> None:
    """Name the series below a chart, or below one of its panels."""
    looks = {member.name: member.look for member in series if member.name}
    short = [n if len(n) <= MAX_LABEL else f"{n[: MAX_LABEL - 1]}…" for n in looks]
    place.legend(
        [Line2D([], [], **look.style) for look in looks.values()],
        list(map(escape_label, short)),
        ncols=count_columns(looks),
        handlelength=3.2,
        **position,
    )


def escape_label(label: str) -> str:
    """Return a label that matplotlib neither reads as mathematics nor hides."""
    text = " ".join(label.split()).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def render_chart(chart: Chart, name: str, form: Literal["svg", "pdf"]) -> bytes:
    """Return the chart as a file, the same bytes for the same chart."""
    file = BytesIO()
    no_metadata = dict.fromkeys(METADATA[form])
    with rc_context({"svg.hashsalt": name, "pdf.fonttype": TRUETYPE}):
        draw_chart(chart).savefig(file, format=form, transparent=True, metadata=no_metadata)
    return file.getvalue()


def list_points(chart: Chart) -> str:
    """Return the points of all named series as CSV; the third column is named as the level axis."""
    head = ["panel", "series", chart.label, *Point._fields[1:-1]]
    rows = [
        [
            panel.title or panel.label,
            point.name or series.name,
            *("" if number is None else str(number) for number in point[:-1]),
        ]
        for panel in chart.panels
        for series in panel.series
        if series.name
        for point in series.points
    ]
    return format_csv(make_table("Points", head, rows))


def write_chart(chart: Chart, folder: Path, name: str) -> None:
    """Write NAME.svg, NAME.pdf and NAME.csv, each whole, for a paper."""
    for form in METADATA:
        write_whole(folder / f"{name}.{form}", render_chart(chart, name, form))
    write_whole(folder / f"{name}.csv", list_points(chart))
