"""What a live service's answers told an attacker, by price."""

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

from matplotlib.figure import Figure

from sims.report.figures import FAINT, INK, WIDTH, choose_look, escape_label
from sims.report.table import Table, format_columns, format_estimate, make_table
from sims.results import (
    ACCURACY,
    LIVE_FILE,
    MSE,
    RIGHT_IMAGE,
    Estimate,
    LiveRow,
    estimate,
    read_records,
)


def read_live(folder: Path) -> list[LiveRow]:
    """Return the attacks on a run's service, cheapest answers first; none where none was made.

    RunError when the file is damaged.
    """
    rows = read_records(folder / LIVE_FILE, LiveRow, "remove it, attack again")
    return sorted(rows, key=price_of)


def price_of(row: LiveRow) -> tuple[str, float, str, int]:
    """Return mechanism, epsilon, attack and answers: rows that share them differ in the seed."""
    return row.mechanism, row.epsilon, row.attack, row.answers


def group_prices(rows: Sequence[LiveRow]) -> list[list[LiveRow]]:
    """Return the rows that differ in the attack's seed only, together."""
    return [list(group) for _, group in groupby(rows, price_of)]


def make_live_table(rows: Sequence[LiveRow]) -> Table:
    """Return accuracy, what was paid and what the attacker got, mean over attack seeds."""
    head = (
        *("attack", "mechanism", "ε per answer", "answers", "ε spent", "right answers, %"),
        *(RIGHT_IMAGE.head, "of", MSE.head, "class means' MSE"),
    )
    lines = []
    for seeds in group_prices(rows):
        row = seeds[0]
        lines.append(
            (
                *(row.attack, row.mechanism, f"{row.epsilon:g}", str(row.answers)),
                f"{row.spent:g}",
                format_estimate(ACCURACY, Estimate(row.accuracy)),
                format_estimate(RIGHT_IMAGE, estimate(seed.identification_1 for seed in seeds)),
                str(row.candidates),
                format_estimate(MSE, estimate(seed.mse for seed in seeds)),
                format_estimate(MSE, Estimate(row.oracle_mse)),
            )
        )
    return make_table("Attacks on the live service", head, lines, words=2)


def draw_live_figure(rows: Sequence[LiveRow]) -> Figure | None:
    """Draw right answers and right images against epsilon; None for fewer than two prices."""
    if len({row.epsilon for row in rows}) < 2:
        return None
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    axes = figure.subplots()
    for index, name in enumerate(sorted({(row.mechanism, row.attack) for row in rows})):
        prices = [g for g in group_prices(rows) if (g[0].mechanism, g[0].attack) == name]
        epsilons = [group[0].epsilon for group in prices]
        look = choose_look(index)
        answers = [100 * group[0].accuracy for group in prices]
        images = [100 * (estimate(r.identification_1 for r in g).mean or 0) for g in prices]
        plot = partial(axes.plot, epsilons, marker=look.marker)
        plot(answers, color=INK, ls="--", label=f"answers: {name[0]}")
        label = escape_label(f"{name[1]}, {name[0]}")
        plot(images, color=look.colour, ls="-", label=f"images: {label}")
    chance = 100 / rows[0].candidates
    axes.axhline(chance, color=FAINT, ls=":", lw=1, label="images: chance")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({row.epsilon for row in rows}), minor=False)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set(xlabel="ε of one answer", ylabel="right, %", ylim=(0, 103))
    axes.legend(fontsize=8, frameon=False)
    return figure


def format_live_table(folder: Path) -> str:
    """Return the table of a run's service as plain text."""
    return format_columns(make_live_table(read_live(folder))) + "\n"
