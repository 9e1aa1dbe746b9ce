"""Tables of the report: their columns, and the rows that these are drawn of."""

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from fedcel.attacks import AttackRow
from fedcel.json_records import Record
from fedcel.settings import dump_settings, flatten_settings
from sims.report.book import read_live
from sims.report.summary import Summary
from sims.report.table import (
    DASH,
    Anchor,
    AnyColumn,
    Table,
    TextColumn,
    find_anchors,
    format_columns,
    format_estimate,
    format_number,
    format_spread,
    make_table,
    tabulate,
)
from sims.results.columns import (
    ACCURACY,
    BITS,
    IDENTIFICATION,
    MSE,
    RIGHT_IMAGE,
    STEP_RATIO,
    Column,
    find_columns,
)
from sims.results.intervals import Estimate, estimate
from sims.results.records import LiveRow, RunResult, attribute


def show_decoder(column: Column, head: str) -> TextColumn:
    """Return the column of a decoder's score: mean and standard deviation over its runs."""

    def show(line: Summary | Anchor) -> str:
        if isinstance(line, Anchor):
            return format_estimate(column, line.measure(column))
        score = line.measure_decoder(column)
        return format_spread(column, score.mean, score.sd)

    return TextColumn(head, show)


def show_cost(key: str, head: str) -> TextColumn:
    """Return the column of a whole number that all seeds share."""
    column = Column(key, head, 0)
    return TextColumn(head, lambda summary: format_number(summary.measure(column).mean, 0))


PSNR, SSIM = find_columns("psnr", "ssim")
LABEL = TextColumn("variant", lambda line: line.label)
WORST = TextColumn(
    "worst attack", lambda line: line.name_worst() if isinstance(line, Summary) else DASH
)
NOISE = TextColumn("noise σ", lambda s: DASH if s.row.noise is None else f"{s.row.noise:g}")
TERMINAL: tuple[AnyColumn, ...] = (
    TextColumn("variant", lambda line: textwrap.shorten(line.label, 30, placeholder="…")),
    ACCURACY.titled("accuracy %"),
    BITS,
    IDENTIFICATION.titled("picked of M %"),
    show_decoder(MSE, "decoder MSE"),
    WORST._replace(head="worst"),
)
FIRST: tuple[AnyColumn, ...] = (
    LABEL,
    ACCURACY,
    BITS,
    IDENTIFICATION.titled("right image, %"),
    MSE.titled("trained attack's MSE"),
)
MAIN: tuple[AnyColumn, ...] = (
    LABEL,
    *find_columns("accuracy", "nll", "ece", "bits-beyond-label", "identification-optimal"),
    *find_columns("certificate-bits", "certificate-bits-within-class"),
    show_decoder(MSE, "decoder MSE"),
    show_decoder(PSNR, "decoder PSNR, dB"),
    show_decoder(SSIM, "decoder SSIM"),
    WORST,
    MSE.titled("its MSE"),
)
DETAILS: tuple[AnyColumn, ...] = (
    LABEL,
    NOISE,
    *find_columns("answer-bits", "bits-beyond-label", "certificate-bits-within-class"),
    *find_columns("population-beyond-label", "population-beyond-label-bernstein"),
    *find_columns("within-class-spread", "between-client-spread"),
)
DEVICE: tuple[AnyColumn, ...] = (
    LABEL,
    show_cost("parameters", "parameters"),
    show_cost("encoder-parameters", "in the encoder"),
    show_cost("flops-per-inference", "FLOPs per inference"),
    show_cost("bytes-per-inference", "bytes per inference"),
    STEP_RATIO,
)


def tabulate_anchored(
    name: str, columns: Sequence[AnyColumn], summaries: Sequence[Summary]
) -> Table:
    """Return a line for each summary, and the two anchors."""
    anchors = find_anchors([row for summary in summaries for row in summary.rows])
    return tabulate(name, columns, [*summaries, *anchors])._replace(is_anchored=True)


class Group(NamedTuple):
    """Line of a table of records: texts, then means over records of one kind."""

    texts: tuple[str, ...]
    records: Sequence[Record]

    def measure(self, column: Column) -> Estimate:
        """Return mean and interval over the records."""
        return estimate(getattr(r, attribute(column.key), None) for r in self.records)


def tabulate_groups(
    name: str, heads: Sequence[str], columns: Sequence[Column], groups: Iterable[Group]
) -> Table:
    """Return a line for each group: its texts under `heads`, then the measures."""
    lines = [[*group.texts, *(format_estimate(c, group.measure(c)) for c in columns)]
             for group in groups]  # fmt: skip
    return make_table(name, (*heads, *(column.head for column in columns)), lines, words=2)


def tabulate_predictors(summaries: Sequence[Summary]) -> Table:
    """Return the scores of each posterior's average and of the point model."""
    groups = []
    for summary in summaries:
        points = [result.point for result in summary.results if result.point is not None]
        groups.append(Group((summary.label, name_predictor(summary.results)), summary.results))
        groups += [Group((summary.label, "point model"), points)] if points else []
    columns = find_columns("accuracy", "nll", "ece", "brier")
    return tabulate_groups(
        "Posterior average and point model", ("variant", "predictor"), columns, groups
    )


def name_predictor(results: Sequence[RunResult]) -> str:
    """Return the source of a run's predictions: the samples it kept, or else its last model."""
    samples = estimate(result.samples for result in results).mean
    if samples is None:
        return "average of the samples"
    return f"average of {samples:g} samples" if samples else "last model (no samples kept)"


def read_epsilon(name: str) -> float:
    """Return the epsilon that names private answers; infinity where it is no number."""
    try:
        return float(name)
    except ValueError:
        return math.inf


def group_private(summary: Summary) -> list[Group]:
    """Return the private answers of a summary's runs by rising epsilon."""
    epsilons = {epsilon for result in summary.results for epsilon in result.private}
    return [
        Group(
            (summary.label, epsilon),
            [result.private[epsilon] for result in summary.results if epsilon in result.private],
        )
        for epsilon in sorted(epsilons, key=read_epsilon)
    ]


def tabulate_private(summaries: Sequence[Summary]) -> Table:
    """Return the utility of private answers at each epsilon, mean over training seeds."""
    columns = find_columns(
        *("accuracy", "ceiling", "top1-kept", "confidence-before", "confidence-after", "ece")
    )
    groups = [group for summary in summaries for group in group_private(summary)]
    return tabulate_groups("Private answers", ("variant", "ε per answer"), columns, groups)


CONDITIONS: dict[str, Callable[[AttackRow], str]] = {
    "attack": lambda a: a.attack,
    "sees": lambda a: a.observation or DASH,
    "knows": lambda a: a.knowledge or DASH,
    "attack seed": lambda a: format_number(a.seed, 0),
    "budget": lambda a: DASH if a.budget is None else f"{a.budget:g}",
    "targets": lambda a: format_number(a.targets, 0),
    "queries paid for": lambda a: format_number(a.queries, 0),
}
"""Conditions under which an attack was carried out."""
SCORES = (
    MSE.titled("MSE"),
    *find_columns("psnr", "ssim", "identification-1", "identification-5", "label-accuracy"),
    *find_columns("bits-beyond-label", "attribute-bits", "attribute-accuracy", "seconds"),
)


def group_attack(attack: AttackRow, *texts: str) -> Group:
    """Return the line of one attack; the optimal attacker identifies, too."""
    if attack.identification_1 is None:
        attack = attack.model_copy(update={"identification_1": attack.identification_optimal})
    return Group((*texts, *(show(attack) for show in CONDITIONS.values())), [attack])


def tabulate_attacks(summaries: Sequence[Summary]) -> Table:
    """Return every row of every attack that was run."""
    groups = [
        group_attack(attack, summary.label, str(row.seed))
        for summary in summaries
        for row, run in zip(summary.rows, summary.runs, strict=True)
        for attack in run.attacks
        if attack.skipped is None
    ]
    heads = ("variant", "training seed", *CONDITIONS)
    return tabulate_groups("Every attack and seed", heads, SCORES, groups)


def format_attack_rows(attacks: Sequence[AttackRow]) -> str:
    """Return rows of attacks as plain text: the scores of each, or why it was not run."""
    groups = [group_attack(attack) for attack in attacks if attack.skipped is None]
    table = tabulate_groups("Attacks", list(CONDITIONS), SCORES, groups)
    shown = [n for n, cells in enumerate(zip(*table.rows, strict=True)) if {*cells} != {DASH}]
    head, *rows = ([cells[n] for n in shown] for cells in (table.head, *table.rows))
    lines = [format_columns(make_table("Attacks", head, rows))] if groups else []
    lines += [
        f"{a.attack} on {a.observation or 'anything'}: {a.skipped}" for a in attacks if a.skipped
    ]
    return "\n".join(lines) + "\n"


def tabulate_settings(summaries: Sequence[Summary]) -> Table:
    """Return every setting, one column a variant."""
    settings = [dict(flatten_settings(dump_settings(s.runs[0].settings))) for s in summaries]
    rows = [
        (key, *(str(values.get(key, DASH)) for values in settings))
        for key in dict.fromkeys(key for values in settings for key in values)
    ]
    return make_table("All settings", ("setting", *(s.label for s in summaries)), rows)


def select_differing(table: Table) -> Table:
    """Return the rows of a table of settings in which the variants differ."""
    rows = tuple(row for row in table.rows if len({*row[1:]}) > 1)
    return table._replace(name="Settings that differ", rows=rows)


def tabulate_live(prices: Iterable[Sequence[LiveRow]]) -> Table:
    """Return accuracy, what was paid and what the attacker got, mean over attack seeds.

    `prices` are rows that differ in the attack's seed only.
    """
    texts = {
        "attack": "{.attack}",
        "mechanism": "{.mechanism}",
        "ε per answer": "{.epsilon:g}",
        "answers": "{.answers}",
        "ε spent": "{.spent:g}",
        "candidates": "{.candidates}",
    }
    columns = (
        *(ACCURACY.titled("right answers, %"), RIGHT_IMAGE, MSE),
        Column("oracle-mse", "class means' MSE", MSE.digits),
    )
    groups = [
        Group(tuple(text.format(rows[0]) for text in texts.values()), rows) for rows in prices
    ]
    return tabulate_groups("Attacks on the live service", [*texts], columns, groups)


def format_live_table(folder: Path) -> str:
    """Return the table of the attacks on a run's service as plain text."""
    return format_columns(tabulate_live(read_live(folder))) + "\n"
