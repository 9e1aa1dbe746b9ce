"""The plots, as SVG text: colours safe for the colour-blind, and never colour alone."""

from collections.abc import Callable, Sequence
from io import StringIO
from typing import Literal, NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedcel.settings import burn_in_rounds
from sims.report.records import Bins, Event, Run
from sims.report.summary import Estimate, Summary

INK = "#26323d"
FAINT = "#8a949e"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b0609a", "#56a5d8", "#c98500")  # Okabe-Ito, darkened
MARKERS = "osD^vPX*"
LINES: tuple[Literal["-", "--", "-."], ...] = ("-", "--", "-.")
WIDTH = 5.0  # inches: text stays readable when a phone shrinks the figure


class Look(NamedTuple):
    """How one summary is drawn in every figure."""

    colour: str
    marker: str
    line: Literal["-", "--", "-."]
    filled: bool = True


def look(index: int) -> Look:
    """Return the look of the summary at this place; 24 differ before one comes back."""
    at = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)], LINES[index % len(LINES)]
    return Look(*at)


def plain(label: str) -> str:
    """Return a label that matplotlib neither reads as mathematics nor hides."""
    text = " ".join(label.split()).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def svg(figure: Figure, name: str) -> str:
    """Return the figure as SVG text, the same bytes for the same figure."""
    out = StringIO()
    empty = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with rc_context({"svg.hashsalt": name}):
        figure.savefig(out, format="svg", transparent=True, metadata=empty)
    return out.getvalue()


def trade_bits(summaries: Sequence[Summary]) -> Figure | None:
    """Draw accuracy (percent) against bits beyond the label; up and left is better."""
    caps = [s.cap for s in summaries if s.cap is not None]
    marks = [(max(caps), "all of it", ":")] if caps else []
    figure = _trade(summaries, lambda s: s.bits, marks)
    if figure is not None:
        axes = figure.axes[0]
        axes.set_xlim(left=0)
        axes.set_xlabel("bits beyond the label that leak (less is better)")
    return figure


def trade_mse(summaries: Sequence[Summary]) -> Figure | None:
    """Draw accuracy (percent) against the worst attack's MSE; up and right is better."""
    marks = []
    for name, line, values in (
        ("label only", "--", [s.oracle_mse for s in summaries]),
        ("mean image", ":", [s.mean_mse for s in summaries]),
    ):
        known = [value for value in values if value is not None]
        marks += [(sum(known) / len(known), name, line)] if known else []
    figure = _trade(summaries, lambda s: s.mse, marks)
    if figure is not None:
        figure.axes[0].set_xlabel("MSE of the worst trained attack (more is better)")
    return figure


def _trade(
    summaries: Sequence[Summary],
    across: Callable[[Summary], Estimate],
    marks: Sequence[tuple[float, str, str]],
) -> Figure | None:
    """Scatter with 95 % intervals; strengths of one variant are joined in their order."""
    drawn = [
        (look(i), s, x, y)
        for i, s in enumerate(summaries)
        if (x := across(s)).mean is not None and (y := s.accuracy).mean is not None
    ]
    if not drawn:
        return None
    figure, axes = _canvas(len(drawn))
    for variant in dict.fromkeys(s.variant for _, s, _, _ in drawn):
        path = sorted(
            (s.strength or 0.0, x.mean or 0.0, 100 * (y.mean or 0.0))
            for _, s, x, y in drawn
            if s.variant == variant
        )
        axes.plot([x for _, x, _ in path], [y for *_, y in path], color=FAINT, lw=0.8, zorder=1)
    for style, _, x, y in drawn:
        axes.errorbar(
            [x.mean or 0],
            [100 * (y.mean or 0)],
            xerr=x.half,
            yerr=None if y.half is None else 100 * y.half,
            color=style.colour,
            marker=style.marker,
            markersize=8,
            elinewidth=1,
            capsize=2,
        )
    for at, name, line in marks:
        axes.axvline(at, color=FAINT, linewidth=1, linestyle=line)
        axes.annotate(
            name, (at, 0), (-3, 4), ("data", "axes fraction"), "offset points",
            color=INK, fontsize=8.5, rotation=90, ha="right", va="bottom",
        )  # fmt: skip
    axes.set_ylabel("test accuracy, %")
    axes.margins(0.1, 0.15)
    _legend(figure, [(style, s.label) for style, s, _, _ in drawn], lines=False)
    return figure


def curve(
    summaries: Sequence[Summary], value: Callable[[Event], float | None], label: str, log: bool
) -> Figure | None:
    """Draw one number over the rounds: mean over seeds, and the range of the seeds as a band."""
    drawn = [
        (look(i), s, rows) for i, s in enumerate(summaries) if (rows := over_rounds(s.runs, value))
    ]
    if not drawn or (log and not any(high > 0 for _, _, rows in drawn for *_, high in rows)):
        return None
    figure, axes = _canvas(len(drawn))
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


def over_rounds(
    runs: Sequence[Run], value: Callable[[Event], float | None]
) -> list[tuple[int, float, float, float]]:
    """Return (round, mean, lowest, highest) over the runs, rounds without a value left out."""
    found: dict[int, list[float]] = {}
    for run in runs:
        for event in run.events:
            if (number := value(event)) is not None:
                found.setdefault(event.round, []).append(number)
    return [(at, sum(v) / len(v), min(v), max(v)) for at, v in sorted(found.items())]


def reliability(bins: dict[str, Bins], average: str) -> Figure | None:
    """Draw accuracy against confidence; `average` names the predictor beside the point model."""
    figure, axes = _canvas(2)
    drawn = []
    names = {"posterior": average, "point": "point model"}
    looks = (look(0), look(1)._replace(filled=False))
    for (key, name), style in zip(names.items(), looks, strict=True):
        found = bins.get(key, Bins())
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


def _canvas(entries: int) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, 3.2 + 0.26 * ((entries + 1) // 2)), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=10, color=FAINT, which="both")
    axes.grid(color=FAINT, alpha=0.2, linewidth=0.6)
    axes.xaxis.label.set(color=INK, fontsize=11)
    axes.yaxis.label.set(color=INK, fontsize=11)
    return figure, axes


def _legend(figure: Figure, entries: Sequence[tuple[Look, str]], lines: bool) -> None:
    handles = [_sample(style, lines) for style, _ in entries]
    labels = [plain(name if len(name) <= 34 else f"{name[:33]}…") for _, name in entries]
    figure.legend(
        handles, labels, loc="outside lower center", ncols=2 if len(labels) > 1 else 1,
        frameon=False, fontsize=9.5, labelcolor=INK, handlelength=3.2 if lines else 1,
    )  # fmt: skip


def _sample(style: Look, lines: bool) -> Line2D:
    line = style.line if lines else "none"
    fill: Literal["full", "none"] = "full" if style.filled else "none"
    return Line2D([], [], color=style.colour, marker=style.marker, linestyle=line, fillstyle=fill)
