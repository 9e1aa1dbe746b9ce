"""A chart as data: named points, drawn by matplotlib.

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

INK = "#26323d"
FAINT = "#8a949e"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b0609a", "#56a5d8", "#c98500")  # Okabe-Ito, darkened
MARKERS = "osD^vPX*"
LINES = ("-", "--", "-.")
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
WIDTH, HEIGHT = 5.0, 3.2  # inches: text stays readable when a phone shrinks the figure
LEGEND_ROW = 0.26  # inches
WIDE_LABEL = 24
"""Letters of a name beside which a second one has no room in a legend."""
MAX_LABEL = 52
"""Letters that a legend has room for."""


Look = Mapping[str, Any]
"""Colour, marker and line of one variant in every chart, in matplotlib's words."""


def choose_look(index: int) -> Look:
    """Return the look of the variant at this place; 24 differ, then come again as outlines."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": LINES[index % len(LINES)],
        "fillstyle": "none" if index // 24 % 2 else "full",
    }


class Point(NamedTuple):
    """A point, half its intervals or its band's ends, and a name where its series has another."""

    x: float
    y: float
    x_half: float | None = None
    y_half: float | None = None
    band: tuple[float, float] | None = None
    name: str = ""


class Series(NamedTuple):
    """Points of one look; without a name they are an aid to the eye, and in no legend.

    `form`: `line`, with a band, or `marks`, with each point's own intervals and a thin line.
    """

    name: str
    look: Look
    points: Sequence[Point]
    form: Literal["line", "marks"] = "line"


class Mark(NamedTuple):
    """A line across a chart at one value, upright or level, and its name beside it."""

    at: float
    name: str = ""
    line: str = ":"
    is_level: bool = False


class Note(NamedTuple):
    """Text at the foot of a chart."""

    text: str
    x: float
    colour: str


class Chart(NamedTuple):
    """Series over one pair of axes.

    `axis` are properties of the axes in matplotlib's words, such as labels, limits and scales.
    """

    series: Sequence[Series]
    axis: Mapping[str, Any]
    marks: Sequence[Mark] = ()
    notes: Sequence[Note] = ()


def draw_chart(chart: Chart) -> Figure:
    """Draw a chart: its series with a legend below, its marks and its notes."""
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, HEIGHT + legend_height(chart)), layout="constrained")
        axes = figure.subplots()
        for series in chart.series:
            draw_series(axes, series)
        axes.set(**chart.axis)
        for mark in chart.marks:
            line = axes.axhline if mark.is_level else axes.axvline
            line(mark.at, color=FAINT, linewidth=1, linestyle=mark.line)
            if mark.name:  # higher than the notes at the foot
                style = {"xytext": (-3, 0), "ha": "right", "rotation": 90}
                write_note(axes, mark.name, (mark.at, 0.3), color=INK, **style)
        for number, note in enumerate(sorted(chart.notes, key=lambda note: note.x)):
            place = (0, 14 + 12 * (number % 3))  # or the texts of neighbours would overlap
            write_note(axes, note.text, (note.x, 0), xytext=place, color=note.colour, ha="center")
        looks = {series.name: series.look for series in chart.series if series.name}
        figure.legend(
            [Line2D([], [], **look) for look in looks.values()],
            list(map(escape_label, looks)),
            loc="outside lower center",
            ncols=count_columns(looks),
            handlelength=3.2,
        )
    return figure


def write_note(axes: Axes, text: str, xy: tuple[float, float], **style: Any) -> None:
    """Write a text at x and a share of the chart's height, moved by so many points."""
    place: Any = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
    axes.annotate(text, xy, fontsize=8.5, va="bottom", **place, **style)


def draw_series(axes: Axes, series: Series) -> None:
    """Draw the points of a series."""
    look, points = series.look, series.points
    xs, ys = [point.x for point in points], [point.y for point in points]
    if series.form == "marks":
        x_half = [math.nan if p.x_half is None else p.x_half for p in points]
        y_half = [math.nan if p.y_half is None else p.y_half for p in points]
        size: dict[str, Any] = {"markersize": 8, "elinewidth": 1, "capsize": 2, "linewidth": 0.9}
        axes.errorbar(xs, ys, xerr=x_half, yerr=y_half, **size, **look)
    else:
        every = max(1, len(points) // 6)
        axes.plot(xs, ys, markersize=5, markevery=every, linewidth=1.4, **look)
        bands = [point.band for point in points if point.band is not None]
        if any(low != high for low, high in bands):
            low, high = zip(*bands, strict=True)
            axes.fill_between(xs, low, high, color=look["color"], alpha=0.15, linewidth=0)


def count_columns(names: Iterable[str]) -> int:
    """Return how many names stand side by side in a legend."""
    lengths = list(map(len, names))
    return 1 if max(lengths) > WIDE_LABEL else min(2, len(lengths))


def legend_height(chart: Chart) -> float:
    """Return the inches that the names of the series take below a chart."""
    names = {series.name for series in chart.series} - {""}
    return LEGEND_ROW * -(-len(names) // count_columns(names))


def escape_label(label: str) -> str:
    """Return a label, cut if long, that matplotlib neither reads as mathematics nor hides."""
    short = label if len(label) <= MAX_LABEL else f"{label[: MAX_LABEL - 1]}…"
    text = " ".join(short.split()).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def render_chart(chart: Chart, name: str, form: Literal["svg", "pdf"] = "svg") -> bytes:
    """Return the chart as a file, the same bytes for the same chart."""
    file = BytesIO()
    no_metadata = dict.fromkeys(METADATA[form])
    with rc_context({"svg.hashsalt": name, "pdf.fonttype": TRUETYPE}):
        draw_chart(chart).savefig(file, format=form, transparent=True, metadata=no_metadata)
    return file.getvalue()


def write_chart(chart: Chart, folder: Path, name: str) -> str:
    """Write NAME.svg and NAME.pdf, each whole; return the SVG."""
    svg = render_chart(chart, name)
    write_whole(folder / f"{name}.svg", svg)
    write_whole(folder / f"{name}.pdf", render_chart(chart, name, "pdf"))
    return svg.decode()
