"""The plots, as SVG text: colours safe for the colour-blind, and never without a marker."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import BytesIO
from itertools import groupby
from typing import Any, Literal, NamedTuple

import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedcel.posterior import DIAGNOSIS_INTERVAL, MAX_R_HAT, Trace, diagnose
from fedcel.settings import MIN_ESS, MIN_SAMPLED_ROUNDS, burn_in_rounds
from sims.report.book import FinishedRun
from sims.report.summary import Summary
from sims.report.tables import group_private, read_epsilon
from sims.results.columns import (
    ACCURACY,
    BITS,
    MSE,
    ORACLE_MSE,
    RIGHT_IMAGE,
    Column,
    find_columns,
)
from sims.results.intervals import estimate
from sims.results.records import BenchRow, LiveRow, ReliabilityBins, RoundEvent

INK = "#26323d"
FAINT = "#8a949e"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b0609a", "#56a5d8", "#c98500")  # Okabe-Ito, darkened
MARKERS = "osD^vPX*"
LINES: tuple[Literal["-", "--", "-."], ...] = ("-", "--", "-.")
STYLE: dict[Any, Any] = {
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.labelsize": 11,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": FAINT,
    "grid.alpha": 0.2,
    "grid.linewidth": 0.6,
    "xtick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.color": FAINT,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
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
PANEL_VARIANTS = 7
"""More variants than these are drawn in several panels."""
MAX_DROP = 12.0
"""Points of accuracy below the undefended net at which a figure ends."""
WIDTH = 5.0  # inches: text stays readable when a phone shrinks the figure
BAR = 0.02
"""Width of a bar of the counts of answers, in confidence."""
WIDE_LABEL = 24
"""Letters of a name beside which a second one has no room in a legend."""
MAX_LABEL = 52
"""Letters that a legend has room for."""
PROBES = 3
"""Validation images whose logits are drawn along the chain."""


class Look(NamedTuple):
    """Colour, marker and line of one summary in every figure."""

    colour: str
    marker: str
    line: Literal["-", "--", "-."]
    filled: bool = True

    @property
    def style(self) -> dict[str, Any]:
        """Colour, marker and line in matplotlib's words."""
        fill = "full" if self.filled else "none"
        return {
            "color": self.colour, "marker": self.marker, "linestyle": self.line, "fillstyle": fill
        }  # fmt: skip


def choose_look(index: int) -> Look:
    """Return the look of the summary at this place; 24 differ, then come again as outlines."""
    look = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)], LINES[index % len(LINES)]
    return Look(*look, filled=index // 24 % 2 == 0)


Looks = Mapping[str, Look]
"""Look of each variant in every figure of a report."""


def choose_looks(summaries: Sequence[Summary]) -> Looks:
    """Return the look of each variant; its strengths share it."""
    variants = dict.fromkeys(s.variant for s in summaries)
    return {variant: choose_look(number) for number, variant in enumerate(variants)}


def escape_label(label: str) -> str:
    """Return a label that matplotlib neither reads as mathematics nor hides."""
    text = " ".join(label.split()).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def render_figure(figure: Figure, name: str, form: Literal["svg", "pdf"]) -> bytes:
    """Return the figure as a file, the same bytes for the same figure."""
    file = BytesIO()
    no_metadata = dict.fromkeys(METADATA[form])
    with rc_context({"svg.hashsalt": name, "pdf.fonttype": TRUETYPE}):
        figure.savefig(file, format=form, transparent=True, metadata=no_metadata)
    return file.getvalue()


class Mark(NamedTuple):
    """A line across at what needs no attack, and its name: left of the line, or right of it."""

    at: float
    name: str
    line: Literal["--", ":"]
    right: bool = False


class Point(NamedTuple):
    """A summary where it is drawn; `y` is the accuracy in percent."""

    look: Look
    summary: Summary
    x: float
    y: float
    x_half: float | None
    y_half: float | None


def place_point(look: Look, summary: Summary, column: Column) -> Point | None:
    """Return a summary at a measure and its accuracy; None where one of them is unknown."""
    x, y = summary.measure(column), summary.measure(ACCURACY)
    if x.mean is None or y.mean is None:
        return None
    halves = (None if v.half is None else c.scale * v.half for c, v in ((column, x), (ACCURACY, y)))
    return Point(look, summary, column.scale * x.mean, ACCURACY.scale * y.mean, *halves)


def draw_bits_trade_off(summaries: Sequence[Summary]) -> Figure | None:
    """Draw accuracy (percent) against bits beyond the label; up and left is better."""
    caps = [s.row.bits_cap for s in summaries if s.row.bits_cap is not None]
    marks = [Mark(0.0, "label only", "--")]
    marks += [Mark(max(caps), "all of it", ":")] if caps else []
    label = "bits beyond the label that leak (less is better)"
    return draw_trade_off(summaries, BITS, label, marks)


def draw_mse_trade_off(summaries: Sequence[Summary]) -> Figure | None:
    """Draw accuracy (percent) against the worst attack's MSE; up and right is better."""
    rows = [row for s in summaries for row in s.rows]
    marks = [
        *mark_mean("label only", "--", (row.measure(ORACLE_MSE.key) for row in rows)),
        *mark_mean("mean image", ":", (row.measure("mean-mse") for row in rows)),
    ]
    label = "MSE of the worst attack that all met (more is better)"
    return draw_trade_off(summaries, MSE, label, marks)


def draw_identification_trade_off(summaries: Sequence[Summary]) -> Figure | None:
    """Draw accuracy against how often the worst attack's image is nearest to its own original.

    Both in percent; up and left is better. The worst attack is that with the lowest MSE.
    """
    shown = [s for s in summaries if s.measure(RIGHT_IMAGE).mean is not None]
    among = [(s.row, count_choices(s.rows)) for s in shown]
    chance = (1 / count for _, count in among if count)
    by_label = (
        row.label_only_identification
        for row, count in among
        if count == row.identification_candidates
    )
    marks = [
        *mark_mean("chance", ":", chance, 100),
        *(mark._replace(right=True) for mark in mark_mean("label only", "--", by_label, 100)),
    ]
    label = "right image by the attack all met, % (less is better)"
    return draw_trade_off(summaries, RIGHT_IMAGE, label, marks)


def count_choices(rows: Iterable[BenchRow]) -> int | None:
    """Number of images among which the worst attacks picked; None where rows differ in it."""
    counts = {
        row.worst.identification_candidates or min(choices, row.worst.targets or choices)
        for row in rows
        if row.worst and row.worst.identification_1 is not None
        if (choices := row.identification_candidates) is not None
    }
    return counts.pop() if len(counts) == 1 else None


def mark_mean(
    name: str, line: Literal["--", ":"], values: Iterable[float | None], scale: float = 1
) -> list[Mark]:
    """Return the line at the mean of the known values, if there are any."""
    mean = estimate(values).mean
    return [] if mean is None else [Mark(scale * mean, name, line)]


def draw_trade_off(
    summaries: Sequence[Summary], column: Column, label: str, marks: Sequence[Mark]
) -> Figure | None:
    """Scatter with 95 % intervals; strengths of one variant are joined in their order.

    More than PANEL_VARIANTS variants are drawn in several panels of the same axes, the undefended
    in each.
    """
    looks = choose_looks(summaries)
    placed = (place_point(looks[s.variant], s, column) for s in summaries)
    points = [point for point in placed if point is not None]
    if not points:
        return None
    groups = split_panels(points)
    legends = [[(points[0].look, points[0].summary.row.name) for points in g] for g in groups]
    figure, panels = make_panels(len(groups), max(map(legend_height, legends)))
    for axes, group, entries in zip(panels, groups, legends, strict=True):
        for variant_points in group:
            draw_variant(axes, variant_points)
        crop_collapsed(axes, points, [point for variant in group for point in variant])
        draw_marks(axes, marks)
        axes.set_ylabel("test accuracy, %")
        axes.margins(0.1, 0.15)
        low, high = axes.get_ylim()
        # Whole marks at 100 %, no tick above.
        axes.set_ylim(top=min(high, 100 + 0.02 * (100 - low)))
        add_legend(figure if len(groups) == 1 else axes, entries, lines=False)
    panels[-1].set_xlabel(label)
    if column == MSE:
        panels[-1].locator_params(axis="x", nbins=6)  # four decimals each, side by side
    else:  # a line at 0 and its name are in view
        panels[-1].set_xlim(left=-0.06 * panels[-1].get_xlim()[1])
    return figure


def draw_marks(axes: Axes, marks: Sequence[Mark]) -> None:
    """Draw lines across, named above what `crop_collapsed` writes at the foot."""
    for mark in marks:
        offset, side = (3, "left") if mark.right else (-3, "right")
        axes.axvline(mark.at, color=FAINT, linewidth=1, linestyle=mark.line)
        write_note(axes, mark.name, (mark.at, 0.3), (offset, 0), rotation=90, ha=side, va="bottom")


def write_note(
    axes: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], **style: Any
) -> None:
    """Write a note at x and a share of the panel's height, moved by so many points."""
    usual: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
    usual |= {"color": INK, "fontsize": 8.5}
    axes.annotate(text, at, offset, **usual | style)


def crop_collapsed(axes: Axes, points: Sequence[Point], in_panel: Sequence[Point]) -> None:
    """Leave out points far less accurate than the undefended: an arrow says where and how far.

    One collapsed net would else press all others into a line.
    """
    undefended = [point.y for point in points if point.summary.row.undefended]
    heights = [point.y for point in points]
    if not undefended or min(heights) > (floor := max(undefended) - MAX_DROP):
        return
    axes.set_ylim(floor, max(heights) + MAX_DROP / 6)
    collapsed = [point for point in in_panel if point.y <= floor]
    for number, point in enumerate(sorted(collapsed, key=lambda point: point.x)):
        offset = (0, 14 + 12 * (number % 3))  # or the texts of neighbours would overlap
        style = {"color": point.look.colour, "fontsize": 9, "ha": "center"}
        write_note(axes, f"↓ {point.y:.0f} %", (point.x, 0), offset, **style)


def split_panels(points: Sequence[Point]) -> list[list[list[Point]]]:
    """Return the points of each variant, as many variants to a panel as are told apart."""
    variants: dict[str, list[Point]] = {point.summary.variant: [] for point in points}
    for point in sorted(points, key=lambda point: point.summary.row.strength or 0.0):
        variants[point.summary.variant].append(point)
    if len(variants) <= PANEL_VARIANTS:
        return [list(variants.values())]
    undefended = [group for group in variants.values() if group[0].summary.row.undefended]
    defended = [group for group in variants.values() if not group[0].summary.row.undefended]
    count = PANEL_VARIANTS - len(undefended)
    starts = range(0, len(defended), count)
    return [[*undefended, *defended[start : start + count]] for start in starts]


def draw_variant(axes: Axes, points: Sequence[Point]) -> None:
    """Draw one variant's points with their intervals, and the line through them."""
    look = points[0].look
    xs, ys = [point.x for point in points], [point.y for point in points]
    axes.plot(xs, ys, color=look.colour, linestyle=look.line, linewidth=0.9, zorder=1)
    for point in points:
        axes.errorbar(
            [point.x], [point.y], xerr=point.x_half, yerr=point.y_half, markersize=8,
            elinewidth=1, capsize=2, label=escape_label(point.summary.label), **look.style,
        )  # fmt: skip


def draw_chain_path(trace: Trace) -> Figure | None:
    """Draw the held-out log-likelihood and three probes' logits by round, each in its own units."""
    if len(trace.rows) < 2:
        return None
    values = torch.stack(trace.rows)[:, : PROBES + 1]
    standardised = (values - values.mean(0)) / values.std(0).clamp_min(1e-12)
    names = ["log-lik.", *(f"probe {number}" for number in range(1, PROBES + 1))]
    curves = dict(zip(names, standardised.T, strict=False))
    style = {"color": choose_look(0).colour, "linewidth": 0.9}
    return draw_round_panels(trace.rounds, curves, 1.05, [style] * len(curves))[0]


def draw_round_panels(
    rounds: Sequence[int], curves: Mapping[str, Any], height: float, styles: Sequence[Any]
) -> tuple[Figure, list[Axes]]:
    """Draw each curve over the rounds in a panel of its own."""
    figure, panels = make_panels(len(curves), height, share_scale=False)
    for axes, (name, values), style in zip(panels, curves.items(), styles, strict=True):
        axes.plot(rounds, values, label=name, **style)
        axes.set_ylabel(name)
    panels[-1].set_xlabel("round")
    return figure, panels


def draw_convergence(trace: Trace) -> Figure | None:
    """Draw R-hat and the effective sample size over the rounds, with what is asked of them."""
    rows = torch.stack(trace.rows) if trace.rows else torch.empty(0, 1)
    counts = range(DIAGNOSIS_INTERVAL, len(rows) + 1, DIAGNOSIS_INTERVAL)
    verdicts = {
        trace.rounds[n - 1]: verdict
        for n in counts
        if n >= MIN_SAMPLED_ROUNDS and (verdict := diagnose(rows[:n]))
    }
    if not verdicts:
        return None
    curves = {
        "split R-hat": [verdict.r_hat for verdict in verdicts.values()],
        "bulk ESS": [verdict.ess for verdict in verdicts.values()],
    }
    styles = [choose_look(n)._replace(line="-").style | {"markersize": 4} for n in range(2)]
    figure, panels = draw_round_panels(list(verdicts), curves, 2.1, styles)
    for axes, limit in zip(panels, (MAX_R_HAT, MIN_ESS), strict=True):
        axes.axhline(limit, color=FAINT, linestyle=":", linewidth=1.2)
    return figure


def draw_curve(
    summaries: Sequence[Summary],
    looks: Looks,
    value: Callable[[RoundEvent], float | None],
    *,
    label: str,
    log: bool,
) -> Figure | None:
    """Draw one number over the rounds: mean over seeds, and the range of the seeds as a band."""
    curves = [
        (looks[s.variant], s, rounds)
        for s in summaries
        if (rounds := summarise_rounds(s.runs, value))
    ]
    if not curves or (log and not any(high > 0 for _, _, rounds in curves for *_, high in rounds)):
        return None
    figure, axes = make_named_panel([(look, s.label) for look, s, _ in curves])
    for look, s, rounds in curves:
        numbers, mean, low, high = zip(*rounds, strict=True)
        name, style = escape_label(s.label), look.style | {"markersize": 5, "linewidth": 1.6}
        axes.plot(numbers, mean, markevery=max(1, len(numbers) // 6), label=name, **style)
        if low != high:
            band: dict[str, Any] = {"color": look.colour, "alpha": 0.15, "linewidth": 0}
            axes.fill_between(numbers, low, high, label=name, **band)
    if log:
        axes.set_yscale("log", nonpositive="mask")
    ends = {burn_in_rounds(run.settings) for s in summaries for run in s.runs}
    for end in sorted(ends - {0}):
        axes.axvline(end, color=FAINT, linewidth=1, linestyle=":")
        write_note(axes, "burn-in ends", (end, 1), (0, 2), ha="center", va="bottom")
    axes.set(xlabel="round", ylabel=label)
    return figure


def summarise_rounds(
    runs: Sequence[FinishedRun], value: Callable[[RoundEvent], float | None]
) -> list[tuple[int, float, float, float]]:
    """Return (round, mean, lowest, highest) over the runs, rounds without a value left out."""
    values: dict[int, list[float]] = {}
    for run in runs:
        for event in run.events:
            if (number := value(event)) is not None:
                values.setdefault(event.round, []).append(number)
    return [(number, sum(v) / len(v), min(v), max(v)) for number, v in sorted(values.items())]


def draw_reliability(
    bins: Mapping[str, ReliabilityBins], look: Look, average: str
) -> Figure | None:
    """Draw accuracy against confidence, and below it how many answers had that confidence.

    `average` names the predictor beside the point model, whose markers are open.
    """
    predictors = (
        ("posterior", average, look),
        ("point", "point model", look._replace(filled=False, line="--")),
    )
    measured = [
        (bin_look, name, rows)
        for key, name, bin_look in predictors
        if (rows := list_bins(bins.get(key, ReliabilityBins())))
    ]
    if not measured:
        return None
    entries = [(bin_look, name) for bin_look, name, _ in measured]
    height = legend_height(entries) / 2
    figure, (axes, counts) = make_panels(2, height, share_scale=False, heights=(2, 1))
    for number, (bin_look, name, rows) in enumerate(measured):
        confidence, accuracy, answers = zip(*rows, strict=True)
        label = escape_label(name)
        axes.plot(confidence, accuracy, markersize=7, linewidth=1.2, label=label, **bin_look.style)
        places = [x + (number - 0.5) * BAR for x in confidence]
        counts.bar(
            places, answers, BAR, color=bin_look.colour if bin_look.filled else "none",
            edgecolor=bin_look.colour, linewidth=1, label=label,
        )  # fmt: skip
    axes.plot([0, 1], [0, 1], color=FAINT, linewidth=1, linestyle=":")
    axes.set(xlim=(0, 1.04), ylim=(0, 1.05), ylabel="accuracy")
    counts.set(xlabel="confidence", ylabel="answers", yscale="log")
    add_legend(figure, entries, lines=True)
    return figure


def list_bins(bins: ReliabilityBins) -> list[tuple[float, float, float]]:
    """Return confidence, accuracy and count of the bins that hold any answer."""
    columns = zip(bins.confidence, bins.accuracy, bins.count, strict=False)
    return [(x, y, n) for x, y, n in columns if n > 0 and x is not None and y is not None]


def draw_private(summaries: Sequence[Summary], looks: Looks) -> Figure | None:
    """Draw the accuracy of private answers over epsilon, and the ceiling of any mechanism.

    The dotted lines are the accuracies without privacy. None below two epsilons.
    """
    curves = [(s, points) for s in summaries if len(points := list_private(s)) > 1]
    if not curves:
        return None
    figure, axes = make_named_panel([(looks[s.variant], s.label) for s, _ in curves])
    for s, points in curves:
        look = looks[s.variant]
        epsilons, accuracy, _ = zip(*points, strict=True)
        label = escape_label(s.label)
        axes.plot(epsilons, accuracy, markersize=6, linewidth=1.4, label=label, **look.style)
        if (bare := s.mean(ACCURACY)) is not None:
            axes.axhline(100 * bare, color=look.colour, linewidth=0.8, linestyle=":")
    ceiling = {epsilon: top for _, points in curves for epsilon, _, top in points if top}
    if ceiling:
        xs, ys = zip(*ceiling.items(), strict=True)
        axes.plot(xs, ys, color=FAINT, lw=1, linestyle="--", label="ceiling")
        last = list(ceiling.items())[-1]
        write_note(axes, "ceiling", last, (-6, 4), xycoords="data", ha="right")
    scale_epsilons(axes, (epsilon for _, points in curves for epsilon, *_ in points))
    axes.set_ylabel("right private answers, %")
    return figure


def list_private(summary: Summary) -> list[tuple[float, float, float | None]]:
    """Return epsilon, accuracy and ceiling in percent, means over seeds, by rising epsilon."""
    points = []
    for group in group_private(summary):
        epsilon = read_epsilon(group.texts[-1])
        accuracy, ceiling = (
            group.measure(column).mean for column in find_columns("accuracy", "ceiling")
        )
        if accuracy is not None and 0 < epsilon < math.inf:  # an unusual name is in the table only
            points.append((epsilon, 100 * accuracy, None if ceiling is None else 100 * ceiling))
    return points


def scale_epsilons(axes: Axes, epsilons: Iterable[float]) -> None:
    """Show percent over epsilons, each with a tick of its own."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({*epsilons}), minor=False)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set(xlabel="ε of one answer", ylim=(0, 103))


def draw_live(prices: Sequence[Sequence[LiveRow]]) -> Figure | None:
    """Draw right answers and right images against epsilon; None for fewer than two epsilons.

    `prices` are rows that differ in the attack's seed only.
    """
    epsilons = {rows[0].epsilon for rows in prices}
    if len(epsilons) < 2:
        return None
    figure, (axes,) = make_panels(1, 3.4)

    def name(rows: Sequence[LiveRow]) -> tuple[str, str]:
        return rows[0].mechanism, rows[0].attack

    for index, ((mechanism, attack), group) in enumerate(groupby(sorted(prices, key=name), name)):
        points = [
            (rows[0].epsilon, 100 * rows[0].accuracy, estimate(r.identification_1 for r in rows))
            for rows in group
        ]
        paid, answers, images = zip(*points, strict=True)
        look = choose_look(index)
        style: dict[str, Any] = {"marker": look.marker}
        axes.plot(paid, answers, color=INK, ls="--", label=f"answers: {mechanism}", **style)
        axes.plot(
            paid, [100 * (image.mean or 0) for image in images], color=look.colour,
            label=f"images: {escape_label(f'{attack}, {mechanism}')}", **style,
        )  # fmt: skip
    chance = 100 / prices[0][0].candidates
    axes.axhline(chance, color=FAINT, ls=":", lw=1, label="images: chance")
    scale_epsilons(axes, epsilons)
    axes.set_ylabel("right, %")
    axes.legend(frameon=False, fontsize=8)
    return figure


Entry = tuple[Look, str]


def count_columns(entries: Sequence[Entry]) -> int:
    """Return how many names stand side by side in a legend."""
    return 1 if max(len(name) for _, name in entries) > WIDE_LABEL else min(2, len(entries))


def legend_height(entries: Sequence[Entry]) -> float:
    """Return the inches of a panel with room for these names below it."""
    return 3.2 + 0.26 * -(-len(entries) // count_columns(entries))


def make_panels(
    count: int, height: float, *, share_scale: bool = True, heights: Sequence[float] | None = None
) -> tuple[Figure, list[Axes]]:
    """Return a figure of panels, one below the other, of so many inches each, or in ratios."""
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, count * height), layout="constrained")
        grid = figure.subplots(
            count, 1, sharex=True, sharey=share_scale, squeeze=False, height_ratios=heights
        )
    panels = list(grid[:, 0])
    for axes in panels[:-1]:
        axes.tick_params(labelbottom=share_scale)
    return figure, panels


def make_named_panel(entries: Sequence[Entry]) -> tuple[Figure, Axes]:
    """Return a figure of one panel, its legend of lines below."""
    figure, (axes,) = make_panels(1, legend_height(entries))
    add_legend(figure, entries, lines=True)
    return figure, axes


def add_legend(place: Figure | Axes, entries: Sequence[Entry], lines: bool) -> None:
    """Name the looks below a figure, or below one of its panels."""
    styles = [look.style if lines else look.style | {"linestyle": "none"} for look, _ in entries]
    short = [n if len(n) <= MAX_LABEL else f"{n[: MAX_LABEL - 1]}…" for _, n in entries]
    position: dict[str, Any] = {"loc": "outside lower center"}
    if isinstance(place, Axes):
        position = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.17)}
    with rc_context(STYLE):
        place.legend(
            [Line2D([], [], **style) for style in styles], list(map(escape_label, short)),
            ncols=count_columns(entries), handlelength=3.2 if lines else 1, **position,
        )  # fmt: skip
