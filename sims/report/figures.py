"""The plots, as SVG text: colours safe for the colour-blind, and never colour alone."""

from collections.abc import Callable, Sequence
from io import StringIO
from typing import Any, Literal, NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedcel.settings import burn_in_rounds
from sims.report.read import FinishedRun
from sims.report.summary import Summary
from sims.results import Estimate, ReliabilityBins, RoundEvent

INK = "#26323d"
FAINT = "#8a949e"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b0609a", "#56a5d8", "#c98500")  # Okabe-Ito, darkened
MARKERS = "osD^vPX*"
LINES: tuple[Literal["-", "--", "-."], ...] = ("-", "--", "-.")
MOST = 7
"""Variants in one panel."""
DEEP = 12.0
"""Points of accuracy below the undefended net at which a figure ends."""
WIDTH = 5.0  # inches: text stays readable when a phone shrinks the figure


class Look(NamedTuple):
    """How one summary is drawn in every figure."""

    colour: str
    marker: str
    line: Literal["-", "--", "-."]
    filled: bool = True


def choose_look(index: int) -> Look:
    """Return the look of the summary at this place; 24 differ, then come again as outlines."""
    at = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)], LINES[index % len(LINES)]
    return Look(*at, filled=index // 24 % 2 == 0)


def choose_looks(summaries: Sequence[Summary]) -> list[Look]:
    """Return the look of each summary; the strengths of one variant share theirs."""
    order = list(dict.fromkeys(s.variant for s in summaries))
    return [choose_look(order.index(s.variant)) for s in summaries]


def escape_label(label: str) -> str:
    """Return a label that matplotlib neither reads as mathematics nor hides."""
    text = " ".join(label.split()).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def render_svg(figure: Figure, name: str) -> str:
    """Return the figure as SVG text, the same bytes for the same figure."""
    out = StringIO()
    empty = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with rc_context({"svg.hashsalt": name}):
        figure.savefig(out, format="svg", transparent=True, metadata=empty)
    return out.getvalue()


class Mark(NamedTuple):
    """A line across at what needs no attack, and its name: left of the line, or right of it."""

    at: float
    name: str
    line: Literal["--", ":"]
    right: bool = False


def draw_bits_trade_off(summaries: Sequence[Summary]) -> Figure | None:
    """Draw accuracy (percent) against bits beyond the label; up and left is better."""
    caps = [s.cap for s in summaries if s.cap is not None]
    most = [Mark(max(caps), "all of it", ":")] if caps else []
    figure = draw_trade_off(summaries, lambda s: s.bits, [Mark(0.0, "label only", "--"), *most])
    if figure is not None:
        start_axis_at_zero(figure)
        figure.axes[-1].set_xlabel("bits beyond the label that leak (less is better)")
    return figure


def start_axis_at_zero(figure: Figure) -> None:
    """Begin the axis a little below 0: a line there and its name are in view."""
    axes = figure.axes[-1]
    axes.set_xlim(left=-0.06 * axes.get_xlim()[1])


def draw_trade_off(
    summaries: Sequence[Summary], across: Callable[[Summary], Estimate], marks: Sequence[Mark]
) -> Figure | None:
    """Scatter with 95 % intervals; strengths of one variant are joined in their order.

    More than MOST variants are drawn in several panels of the same axes, the undefended in each.
    """
    drawn = [
        Point(style, s, x, y)
        for style, s in zip(choose_looks(summaries), summaries, strict=True)
        if (x := across(s)).mean is not None and (y := s.accuracy).mean is not None
    ]
    if not drawn:
        return None
    groups = split_panels(drawn)
    figure, axes = _canvas(max(map(len, groups)), len(groups))
    for pane, group in zip(axes, groups, strict=True):
        for points in group:
            _sweep(pane, points)
        _narrow(pane, drawn, [point for points in group for point in points])
        _draw(pane, marks)
        pane.set_ylabel("test accuracy, %")
        pane.margins(0.1, 0.15)
        low, high = pane.get_ylim()
        # Whole marks at 100 %, no tick above.
        pane.set_ylim(top=min(high, 100 + 0.02 * (100 - low)))
        entries = [(points[0].look, points[0].summary.title) for points in group]
        _legend(figure if len(groups) == 1 else pane, entries, lines=False)
    return figure


def _draw(axes: Axes, marks: Sequence[Mark]) -> None:
    for mark in marks:  # named above what `_narrow` writes at the foot
        away, side = (3, "left") if mark.right else (-3, "right")
        axes.axvline(mark.at, color=FAINT, linewidth=1, linestyle=mark.line)
        axes.annotate(
            mark.name, (mark.at, 0.3), (away, 0), ("data", "axes fraction"), "offset points",
            color=INK, fontsize=8.5, rotation=90, ha=side, va="bottom",
        )  # fmt: skip


class Point(NamedTuple):
    """A summary where it is drawn."""

    look: Look
    summary: Summary
    x: Estimate
    y: Estimate


def _narrow(axes: Axes, drawn: Sequence[Point], here: Sequence[Point]) -> None:
    """Leave out what is far less accurate than the undefended: an arrow says where and how far.

    One collapsed net would else press all others into a line.
    """
    bare = [100 * (p.y.mean or 0) for p in drawn if p.summary.undefended]
    heights = [100 * (p.y.mean or 0) for p in drawn]
    if not bare or min(heights) > (floor := max(bare) - DEEP):
        return
    axes.set_ylim(floor, max(heights) + DEEP / 6)
    low = [p for p in here if 100 * (p.y.mean or 0) <= floor]
    for number, point in enumerate(sorted(low, key=lambda p: p.x.mean or 0)):
        axes.annotate(  # neighbours one above the other, or their texts would overlap
            f"↓ {100 * (point.y.mean or 0):.0f} %", (point.x.mean or 0, 0),
            (0, 14 + 12 * (number % 3)), ("data", "axes fraction"),
            "offset points", color=point.look.colour, fontsize=9, ha="center",
        )  # fmt: skip


def split_panels(drawn: Sequence[Point]) -> list[list[list[Point]]]:
    """Return the points of each variant, as many variants to a panel as are told apart."""
    variants: dict[str, list[Point]] = {}
    for point in sorted(drawn, key=lambda point: point.summary.strength or 0.0):
        variants.setdefault(point.summary.variant, []).append(point)
    ordered = [variants[name] for name in dict.fromkeys(p.summary.variant for p in drawn)]
    bare = [points for points in ordered if points[0].summary.undefended]
    others = [points for points in ordered if not points[0].summary.undefended]
    if len(ordered) <= MOST:
        return [ordered]
    count = MOST - len(bare)
    return [[*bare, *others[at : at + count]] for at in range(0, len(others), count)]


def _sweep(axes: Axes, points: Sequence[Point]) -> None:
    """Draw one variant's points with their intervals, and the line through them."""
    style = points[0].look
    xs, ys = [p.x.mean or 0 for p in points], [100 * (p.y.mean or 0) for p in points]
    axes.plot(xs, ys, color=style.colour, linestyle=style.line, linewidth=0.9, zorder=1)
    for x, y, point in zip(xs, ys, points, strict=True):
        axes.errorbar(
            [x],
            [y],
            xerr=point.x.half,
            yerr=None if point.y.half is None else 100 * point.y.half,
            color=style.colour,
            marker=style.marker,
            fillstyle="full" if style.filled else "none",
            markersize=8,
            elinewidth=1,
            capsize=2,
        )


def draw_curve(
    summaries: Sequence[Summary], value: Callable[[RoundEvent], float | None], label: str, log: bool
) -> Figure | None:
    """Draw one number over the rounds: mean over seeds, and the range of the seeds as a band."""
    drawn = [
        (style, s, rows)
        for style, s in zip(choose_looks(summaries), summaries, strict=True)
        if (rows := summarise_rounds(s.runs, value))
    ]
    if not drawn or (log and not any(high > 0 for _, _, rows in drawn for *_, high in rows)):
        return None
    figure, (axes,) = _canvas(len(drawn))
    for style, _, rows in drawn:
        at, mean, low, high = zip(*rows, strict=True)
        axes.plot(
            at, mean, color=style.colour, linestyle=style.line, marker=style.marker,
            markersize=5, markevery=max(1, len(at) // 6), linewidth=1.6,
        )  # fmt: skip
        if low != high:
            axes.fill_between(at, low, high, color=style.colour, alpha=0.15, linewidth=0)
    if log:
        axes.set_yscale("log", nonpositive="mask")
    ends = {burn_in_rounds(run.settings) for s in summaries for run in s.runs}
    for end in sorted(ends - {0}):
        axes.axvline(end, color=FAINT, linewidth=1, linestyle=":")
        axes.annotate(
            "burn-in ends", (end, 1), (0, 2), ("data", "axes fraction"), "offset points",
            color=INK, fontsize=8.5, ha="center", va="bottom",
        )  # fmt: skip
    axes.set_xlabel("round")
    axes.set_ylabel(label)
    _legend(figure, [(style, s.label) for style, s, _ in drawn], lines=True)
    return figure


def summarise_rounds(
    runs: Sequence[FinishedRun], value: Callable[[RoundEvent], float | None]
) -> list[tuple[int, float, float, float]]:
    """Return (round, mean, lowest, highest) over the runs, rounds without a value left out."""
    found: dict[int, list[float]] = {}
    for run in runs:
        for event in run.events:
            if (number := value(event)) is not None:
                found.setdefault(event.round, []).append(number)
    return [(at, sum(v) / len(v), min(v), max(v)) for at, v in sorted(found.items())]


def draw_reliability(bins: dict[str, ReliabilityBins], average: str) -> Figure | None:
    """Draw accuracy against confidence; `average` names the predictor beside the point model."""
    figure, (axes,) = _canvas(2)
    drawn = []
    names = {"posterior": average, "point": "point model"}
    looks = (choose_look(0), choose_look(1)._replace(filled=False))
    for (key, name), style in zip(names.items(), looks, strict=True):
        found = bins.get(key, ReliabilityBins())
        rows = [
            (c, a)
            for c, a, n in zip(found.confidence, found.accuracy, found.count, strict=False)
            if n > 0 and c is not None and a is not None
        ]
        if rows:
            axes.plot(
                *zip(*rows, strict=True), color=style.colour, marker=style.marker,
                linestyle=style.line, markersize=7, linewidth=1.2,
                fillstyle="full" if style.filled else "none",
            )  # fmt: skip
            drawn.append((style, name))
    if not drawn:
        return None
    axes.plot([0, 1], [0, 1], color=FAINT, linewidth=1, linestyle=":")
    axes.set(xlim=(0, 1.02), ylim=(0, 1.05), xlabel="confidence", ylabel="accuracy")
    _legend(figure, drawn, lines=True)
    return figure


def _canvas(entries: int, count: int = 1) -> tuple[Figure, list[Axes]]:
    """Return a figure of so many panels of the same axes, each with room for a legend."""
    tall = 3.2 + 0.26 * ((entries + 1) // 2)
    figure = Figure(figsize=(WIDTH, count * tall), layout="constrained")
    grid = figure.subplots(count, 1, sharex=True, sharey=True, squeeze=False)
    for axes in (panes := list(grid[:, 0])):
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(FAINT)
        axes.tick_params(colors=INK, labelsize=10, color=FAINT, which="both", labelbottom=True)
        axes.grid(color=FAINT, alpha=0.2, linewidth=0.6)
        axes.xaxis.label.set(color=INK, fontsize=11)
        axes.yaxis.label.set(color=INK, fontsize=11)
    return figure, panes


def _legend(place: Figure | Axes, entries: Sequence[tuple[Look, str]], lines: bool) -> None:
    """Name the looks below a figure, or below one of its panels."""
    handles = [_sample(style, lines) for style, _ in entries]
    labels = [escape_label(name if len(name) <= 34 else f"{name[:33]}…") for _, name in entries]
    columns, long = 2 if len(labels) > 1 else 1, 3.2 if lines else 1
    how: dict[str, Any] = {"frameon": False, "fontsize": 9.5, "labelcolor": INK}
    if isinstance(place, Figure):
        how["loc"] = "outside lower center"
    else:
        how |= {"loc": "upper center", "bbox_to_anchor": (0.5, -0.17)}
    place.legend(handles, labels, ncols=columns, handlelength=long, **how)


def _sample(style: Look, lines: bool) -> Line2D:
    line = style.line if lines else "none"
    fill: Literal["full", "none"] = "full" if style.filled else "none"
    return Line2D([], [], color=style.colour, marker=style.marker, linestyle=line, fillstyle=fill)
