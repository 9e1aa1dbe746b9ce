"""What a live service's answers told an attacker, by price."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from matplotlib.figure import Figure
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fedcel.errors import RunError
from fedcel.files import read_json
from sims.report.figures import FAINT, INK, WIDTH, choose_look, escape_label
from sims.report.table import Table, format_columns, make_table
from sims.report.text import format_interval, format_number
from sims.results.estimate import estimate

FILE = "live.json"


class Live(BaseModel):
    """One attack on one service, one attack seed."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    mechanism: str
    epsilon: float
    answers: int
    spent: float
    accuracy: float
    attack: str
    seed: int
    candidates: int
    mse: float
    identified: float = Field(alias="identification-1")
    oracle: float = Field(alias="oracle-mse")


def read_live(folder: Path) -> list[Live]:
    """Return the attacks on a run's service, cheapest answers first; none where none was made.

    RunError when the file is damaged.
    """
    path = folder / FILE
    if not path.exists():
        return []
    try:
        rows = TypeAdapter(list[Live]).validate_python(read_json(path))
    except ValidationError as error:
        raise RunError(
            f"{path} is damaged: {error.error_count()} problems; remove it, attack again"
        ) from None
    return sorted(rows, key=_place)


def _place(row: Live) -> tuple[str, float, str, int]:
    return row.mechanism, row.epsilon, row.attack, row.answers


def group_points(rows: Sequence[Live]) -> list[list[Live]]:
    """Return the rows that differ in the attack's seed only, together."""
    return [list(group) for _, group in groupby(rows, _place)]


def make_live_table(rows: Sequence[Live]) -> Table:
    """Return accuracy, what was paid and what the attacker got, mean over attack seeds."""
    head = (
        *("attack", "mechanism", "ε per answer", "answers", "ε spent", "right answers, %"),
        *("right image, %", "of", "MSE", "class means' MSE"),
    )
    lines = []
    for found in group_points(rows):
        one = found[0]
        lines.append(
            (
                *(one.attack, one.mechanism, f"{one.epsilon:g}", str(one.answers)),
                *(f"{one.spent:g}", format_number(100 * one.accuracy, 1)),
                format_interval(estimate(row.identified for row in found), 1, 100),
                *(str(one.candidates), format_interval(estimate(row.mse for row in found), 4)),
                format_number(one.oracle, 4),
            )
        )
    return make_table("Attacks on the live service", head, lines, words=2)


def draw_live_figure(rows: Sequence[Live]) -> Figure | None:
    """Draw right answers and right images against epsilon; None for fewer than two prices."""
    if len({row.epsilon for row in rows}) < 2:
        return None
    drawn = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    axes = drawn.subplots()
    for index, name in enumerate(sorted({(row.mechanism, row.attack) for row in rows})):
        mine = [f for f in group_points(rows) if (f[0].mechanism, f[0].attack) == name]
        price, one = [f[0].epsilon for f in mine], choose_look(index)
        label, right = escape_label(f"{name[1]}, {name[0]}"), [100 * f[0].accuracy for f in mine]
        hits = [100 * (estimate(row.identified for row in f).mean or 0) for f in mine]
        axes.plot(price, right, color=INK, marker=one.marker, ls="--", label=f"answers: {name[0]}")
        axes.plot(
            price, hits, color=one.colour, marker=one.marker, ls="-", label=f"images: {label}"
        )
    chance = 100 / rows[0].candidates
    axes.axhline(chance, color=FAINT, ls=":", lw=1, label="images: chance")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({row.epsilon for row in rows}), minor=False)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set(xlabel="ε of one answer", ylabel="right, %", ylim=(0, 103))
    axes.legend(fontsize=8, frameon=False)
    return drawn


def format_live_table(folder: Path) -> str:
    """Return the table of a run's service as plain text."""
    return format_columns(make_live_table(read_live(folder))) + "\n"
