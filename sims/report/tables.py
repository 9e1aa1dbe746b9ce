"""Tables of the report: their columns, and the lines that these are drawn of."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from fedcel.attacks import AttackRow
from fedcel.leakage import SequenceLeak
from fedcel.settings import dump_settings, flatten_settings
from sims.report.book import read_live
from sims.report.summary import Summary
from sims.report.table import (
    DASH,
    Line,
    Table,
    format_columns,
    format_number,
    list_anchors,
    make_table,
    measure_records,
    tabulate,
)
from sims.results.columns import (
    ACCURACY,
    BITS,
    IDENTIFICATION,
    MSE,
    ORACLE_MSE,
    RIGHT_IMAGE,
    STEP_RATIO,
    Column,
    find_columns,
)
from sims.results.intervals import estimate
from sims.results.records import LiveRow, RunResult

TEXTS: dict[str, Callable[[Summary], str]] = {
    "variant": lambda s: s.label,
    "worst attack": lambda s: s.name_worst(),
    "noise σ": lambda s: DASH if s.row.noise is None else f"{s.row.noise:g}",
}
"""Texts of a summary by their heads."""
FIRST = (ACCURACY, BITS, IDENTIFICATION.titled("picked, %"), MSE)
MAIN = (
    *find_columns("accuracy", "nll", "ece", "bits-beyond-label", "identification-optimal"),
    *find_columns("certificate-bits", "certificate-bits-within-class"),
    *(MSE, *find_columns("psnr", "ssim", "identification-1")),
)
DETAILS = (
    *find_columns("answer-bits", "bits-beyond-label", "certificate-bits-within-class"),
    *find_columns("population-beyond-label", "population-beyond-label-bernstein"),
    *find_columns("within-class-spread", "between-client-spread"),
)
PICTURE = (
    *find_columns("linearised-bits", "linearised-mse", "linearised-psnr", "van-trees-mse"),
    *(MSE.titled("trained attack's MSE"), *find_columns("dfil", "fsinfo")),
)
DEVICE = (
    Column("parameters", "parameters, k", 1, 1e-3),
    *find_columns("encoder-parameters", "flops-per-inference", "bytes-per-inference"),
    STEP_RATIO,
)


def tabulate_variants(
    name: str,
    heads: Sequence[str],
    columns: Sequence[Column],
    summaries: Sequence[Summary],
    *,
    anchored: bool = True,
) -> Table:
    """Return a line for each summary, with its texts under `heads`; the anchors come last."""
    lines = [Line(tuple(TEXTS[head](s) for head in heads), s.measure) for s in summaries]
    if anchored:
        lines += list_anchors([row for summary in summaries for row in summary.rows])
    return tabulate(name, heads, columns, lines)


def tabulate_predictors(summaries: Sequence[Summary]) -> Table:
    """Return the scores of each posterior's average and of the point model."""
    lines = []
    for summary in summaries:
        points = [result.point for result in summary.results if result.point is not None]
        name = name_predictor(summary.results)
        lines.append(measure_records((summary.label, name), summary.results))
        lines += [measure_records((summary.label, "point model"), points)] if points else []
    columns = find_columns("accuracy", "nll", "ece", "brier")
    return tabulate("Posterior average and point model", ("variant", "predictor"), columns, lines)


def name_predictor(results: Sequence[RunResult]) -> str:
    """Return the source of a run's predictions: the samples it kept, or else its last model."""
    samples = estimate(result.samples for result in results).mean
    if samples is None:
        return "average of the samples"
    return f"average of {samples:g} samples" if samples else "last model (no samples kept)"


def tabulate_private(summaries: Sequence[Summary]) -> Table:
    """Return the utility of private answers at each epsilon, mean over training seeds."""
    lines = []
    for summary in summaries:
        answers = [result.private for result in summary.results]
        for epsilon in sorted({epsilon for part in answers for epsilon in part}, key=float):
            scores = [part[epsilon] for part in answers if epsilon in part]
            lines.append(measure_records((summary.label, epsilon), scores))
    columns = find_columns(
        *("accuracy", "ceiling", "top1-kept", "confidence-before", "confidence-after", "ece")
    )
    return tabulate("Private answers", ("variant", "ε per answer"), columns, lines)


ATTACK_HEADS = ("attack", "sees", "knows")
ATTACK_COLUMNS = (
    *(Column("seed", "attack seed", 0), Column("budget", "budget", 2)),
    *(Column("targets", "targets", 0), Column("queries", "queries paid for", 0)),
    MSE.titled("MSE"),
    *find_columns("psnr", "ssim", "identification-1", "identification-5", "label-accuracy"),
    *find_columns("bits-beyond-label", "attribute-bits", "attribute-accuracy", "seconds"),
    Column("share-of-steps", "steps taken, %", 0, 100),
)
"""Conditions under which an attack was carried out, and its scores."""


def make_attack_line(attack: AttackRow, *texts: str) -> Line:
    """Return the line of one attack; the optimal attacker identifies, too."""
    if attack.identification_1 is None:
        attack = attack.model_copy(update={"identification_1": attack.identification_optimal})
    observation = attack.observation + (f" of {attack.upload}" if attack.upload else "")
    conditions = (attack.attack, observation or DASH, attack.knowledge or DASH)
    return measure_records((*texts, *conditions), [attack])


def tabulate_attacks(summaries: Sequence[Summary]) -> Table:
    """Return every row of every attack that was run."""
    lines = [
        make_attack_line(attack, summary.label, str(row.seed))
        for summary in summaries
        for row, run in zip(summary.rows, summary.runs, strict=True)
        for attack in run.attacks
        if attack.skipped is None
    ]
    heads = ("variant", "training seed", *ATTACK_HEADS)
    return drop_empty_columns(tabulate("Every attack and seed", heads, ATTACK_COLUMNS, lines))


def drop_empty_columns(table: Table) -> Table:
    """Return a table without the columns of numbers that hold nothing but dashes."""
    cells = list(zip(*table.rows, strict=True))
    places = [n for n, column in enumerate(cells) if n < table.words or {*column} != {DASH}]
    head, *rows = (tuple(row[n] for n in places) for row in (table.head, *table.rows))
    return table._replace(head=head, rows=tuple(rows))


def format_attack_rows(attacks: Sequence[AttackRow]) -> str:
    """Return rows of attacks as plain text: the scores of each, or why it was not run."""
    lines = [make_attack_line(attack) for attack in attacks if attack.skipped is None]
    table = drop_empty_columns(tabulate("Attacks", ATTACK_HEADS, ATTACK_COLUMNS, lines))
    text = [format_columns(table)] if lines else []
    for attack in attacks:
        if attack.stop_note:
            seed = f"seed {attack.seed}: {attack.stop_note}"
            text.append(f"{attack.attack} on {attack.observation}, {seed}")
        if attack.skipped:
            text.append(f"{attack.attack} on {attack.observation or 'anything'}: {attack.skipped}")
    return "\n".join([*text, ""])


def tabulate_sequences(sequences: Mapping[str, Sequence[Sequence[SequenceLeak]]]) -> Table:
    """Return two rows for each encoder, bits and error, and a column for each number of messages.

    `sequences` are those of an encoder's runs by its name; that of a single one may be empty.
    """
    numbers = sorted({p.messages for runs in sequences.values() for run in runs for p in run})
    rows = []
    for name, runs in sequences.items():
        parts = [part for run in runs for part in run]
        for words, key, digits in (("bits", "bits", 1), ("least MSE", "mse", 4)):
            means = (
                estimate(getattr(p, key) for p in parts if p.messages == number).mean
                for number in numbers
            )
            cells = [format_number(mean, digits) for mean in means]
            rows += [[f"{name}, {words}" if name else words, *cells]] if parts else []
    head = ("", *(f"{number} message{'s' * (number > 1)}" for number in numbers))
    return make_table("Several messages of one image", head, rows)


def tabulate_settings(summaries: Sequence[Summary]) -> Table:
    """Return every setting, one column a variant; first come those in which variants differ."""
    settings = [dict(flatten_settings(dump_settings(s.runs[0].settings))) for s in summaries]
    rows = [
        (key, *(str(values.get(key, DASH)) for values in settings))
        for key in dict.fromkeys(key for values in settings for key in values)
    ]
    rows.sort(key=lambda row: len({*row[1:]}) == 1)
    return make_table("Settings", ("setting", *(s.label for s in summaries)), rows)


def tabulate_live(prices: Iterable[Sequence[LiveRow]]) -> Table:
    """Return accuracy, what was paid and what the attacker got, mean over attack seeds.

    `prices` are rows that differ in the attack's seed only.
    """
    heads = ("attack", "mechanism", "ε per answer", "ε spent")
    columns = (
        *(Column("answers", "answers", 0), Column("candidates", "candidates", 0)),
        *(ACCURACY.titled("right answers, %"), RIGHT_IMAGE, MSE, ORACLE_MSE),
        Column("share-of-steps", "steps taken, %", 0, 100),
    )
    lines = [
        measure_records(
            (first.attack, first.mechanism, f"{first.epsilon:g}", f"{first.spent:g}"), rows
        )
        for rows in prices
        for first in rows[:1]
    ]
    return drop_empty_columns(tabulate("Attacks on the live service", heads, columns, lines))


def format_live_table(folder: Path) -> str:
    """Return the table of the attacks on a run's service as plain text."""
    return format_columns(tabulate_live(read_live(folder))) + "\n"
