"""The tables of the page: rows of text, formatted once, from the numbers that were read."""

from collections.abc import Callable, Iterable, Sequence

from fedcel.attacks import AttackRow
from fedcel.json_records import Record
from fedcel.settings import dump_settings, flatten_settings
from sims.report.summary import Summary, read_epsilon
from sims.report.table import (
    DASH,
    Table,
    find_summary_anchors,
    format_columns,
    format_deviation,
    format_estimate,
    format_number,
    make_table,
)
from sims.report.terminal_summary import name_worst_attacks
from sims.results import (
    IDENTIFICATION,
    MSE,
    STEP_RATIO,
    Column,
    RunResult,
    attribute,
    estimate,
    find_columns,
)

MAIN = find_columns(
    *("accuracy", "nll", "ece", "bits-beyond-label", "identification-optimal"),
    *("certificate-bits", "certificate-bits-within-class"),
)
DECODER = find_columns("mse", "psnr", "ssim")
DETAILS = find_columns(
    *("answer-bits", "bits-beyond-label", "certificate-bits-within-class"),
    *("population-beyond-label", "population-beyond-label-bernstein", "gaussianity-gap-bits"),
    *("gaussianity-direction-bits", "gaussianity-kurtosis", "within-class-spread"),
    "between-client-spread",
)
PREDICTOR = find_columns("accuracy", "nll", "ece", "brier")
UTILITY = find_columns(
    *("accuracy", "ceiling", "top1-kept", "confidence-before", "confidence-after", "ece")
)
SCORES = (
    MSE.titled("MSE"),
    *find_columns("psnr", "ssim", "identification-1", "identification-5", "label-accuracy"),
    *find_columns("bits-beyond-label", "attribute-bits", "attribute-accuracy", "seconds"),
)


def make_first_table(summaries: Sequence[Summary]) -> Table:
    """Return accuracy and leak in four columns: one row per summary, and the two anchors."""
    columns = [
        *find_columns("accuracy", "bits-beyond-label"),
        IDENTIFICATION.titled("right image, %"),
        MSE.titled("trained attack's MSE"),
    ]
    rows = []
    for s in summaries:
        values = (s.accuracy, s.bits, s.identification, s.mse)
        rows.append([s.label, *map(format_estimate, columns, values)])
    for anchor in find_summary_anchors(summaries):
        rows.append([anchor.name, *anchor.format_cells(columns)])
    return make_table("Accuracy and leak", ("variant", *(column.head for column in columns)), rows)


def make_main_table(summaries: Sequence[Summary]) -> Table:
    """Return one row per summary, and the two anchors; ± of the decoder is over its runs."""
    rows = []
    for s in summaries:
        leak = (s.accuracy, s.nll, s.ece, s.bits, s.identification, s.certificate)
        decoder = (s.decoder_mse, s.decoder_psnr, s.decoder_ssim)
        rows.append(
            [
                s.label,
                *map(format_estimate, MAIN, (*leak, s.certificate_within)),
                *(format_deviation(v, c.digits) for c, v in zip(DECODER, decoder, strict=True)),
                name_worst_attacks(s),
                format_estimate(MSE, s.mse),
            ]
        )
    for anchor in find_summary_anchors(summaries):
        rows.append([anchor.name, *anchor.format_cells((*MAIN, *DECODER)), DASH, DASH])
    heads = (column.head for column in MAIN)
    decoder_heads = ("decoder MSE", *(f"decoder {column.head}" for column in DECODER[1:]))
    head = ("variant", *heads, *decoder_heads, "worst attack", "its MSE")
    return make_table("Variants", head, rows)


def make_details_table(summaries: Sequence[Summary]) -> Table:
    """Return what lies behind each leak: its bounds, the shape of the classes, their spread."""
    head = ("variant", "noise σ", *(column.head for column in DETAILS))
    rows = [
        (
            summary.label,
            DASH if summary.noise is None else f"{summary.noise:g}",
            *format_results(DETAILS, results_of(summary)),
        )
        for summary in summaries
    ]
    return make_table("Behind the leak", head, rows)


def results_of(summary: Summary) -> list[RunResult]:
    """Return the results of a summary's runs."""
    return [run.result for run in summary.runs]


def format_results(columns: Iterable[Column], records: Sequence[Record]) -> list[str]:
    """Return a cell for each column: mean over records of one kind, with the interval."""
    return [
        format_estimate(c, estimate(getattr(record, attribute(c.key)) for record in records))
        for c in columns
    ]


def make_posterior_table(summaries: Sequence[Summary]) -> Table:
    """Return the scores of the posterior's average beside those of the point model."""
    head = ("variant", "predictor", *(column.head for column in PREDICTOR))
    rows = []
    for summary in summaries:
        results = results_of(summary)
        points = [result.point for result in results if result.point is not None]
        rows.append((summary.label, name_predictor(results), *format_results(PREDICTOR, results)))
        if points:
            rows.append((summary.label, "point model", *format_results(PREDICTOR, points)))
    return make_table("Posterior average and point model", head, rows, words=2)


def name_predictor(results: Sequence[RunResult]) -> str:
    """Return what made a run's predictions: the samples it kept, or else its last model."""
    samples = estimate(result.samples for result in results).mean
    if samples is None:
        return "average of the samples"
    return f"average of {samples:g} samples" if samples else "last model (no samples kept)"


def make_device_table(summaries: Sequence[Summary]) -> Table:
    """Return what each variant costs the device, equal over its seeds."""
    sent = ("FLOPs per inference", "bytes per inference")
    head = ("variant", "parameters", "in the encoder", *sent, STEP_RATIO.head)
    names = ("parameters", "encoder_parameters", "flops_per_inference", "bytes_per_inference")
    rows = []
    for summary in summaries:
        results = results_of(summary)
        costs = (estimate(getattr(result, name) for result in results).mean for name in names)
        step = format_number(summary.step_ratio.mean, STEP_RATIO.digits)
        rows.append((summary.label, *(format_number(cost, 0) for cost in costs), step))
    return make_table("Cost on the device", head, rows)


def make_private_table(summaries: Sequence[Summary]) -> Table:
    """Return what private answers are worth at each epsilon, mean over training seeds."""
    head = ("variant", "ε per answer", *(column.head for column in UTILITY))
    rows = []
    for summary in summaries:
        results = results_of(summary)
        epsilons = dict.fromkeys(epsilon for result in results for epsilon in result.private)
        for epsilon in sorted(epsilons, key=read_epsilon):
            private = [r.private[epsilon] for r in results if epsilon in r.private]
            rows.append((summary.label, epsilon, *format_results(UTILITY, private)))
    return make_table("Private answers", head, rows)


HOW: tuple[tuple[str, Callable[[AttackRow], str]], ...] = (
    ("attack", lambda a: a.attack),
    ("sees", lambda a: a.observation or DASH),
    ("knows", lambda a: a.knowledge or DASH),
    ("attack seed", lambda a: DASH if a.seed is None else str(a.seed)),
    ("budget", lambda a: DASH if a.budget is None else f"{a.budget:g}"),
    ("targets", lambda a: format_number(a.targets, 0)),
    ("queries paid for", lambda a: format_number(a.queries, 0)),
)
"""How an attack was carried out."""
ATTACK_HEAD = (*(name for name, _ in HOW), *(column.head for column in SCORES))


def format_attack(row: AttackRow) -> list[str]:
    """Return the cells of one attack; the optimal attacker identifies, too."""
    if row.identification_1 is None:
        row = row.model_copy(update={"identification_1": row.identification_optimal})
    return [*(cell(row) for _, cell in HOW), *format_results(SCORES, [row])]


def make_attacks_table(summaries: Sequence[Summary]) -> Table:
    """Return every row of every attack that was run."""
    rows = [
        (summary.label, str(seed), *format_attack(attack))
        for summary in summaries
        for seed, run in zip(summary.seeds, summary.runs, strict=True)
        for attack in run.attacks
        if attack.skipped is None
    ]
    head = ("variant", "training seed", *ATTACK_HEAD)
    return make_table("Every attack and seed", head, rows)


def format_attack_rows(attacks: Sequence[AttackRow]) -> str:
    """Return rows of attacks as plain text: what each attack scored, or why it was not run."""
    body = [format_attack(attack) for attack in attacks if attack.skipped is None]
    shown = [i for i in range(len(ATTACK_HEAD)) if any(line[i] != DASH for line in body)]
    head = [ATTACK_HEAD[i] for i in shown]
    rows = [[line[i] for i in shown] for line in body]
    lines = [format_columns(make_table("Attacks", head, rows))] if body else []
    lines += [
        f"{a.attack} on {a.observation or 'anything'}: {a.skipped}" for a in attacks if a.skipped
    ]
    return "\n".join(lines) + "\n"


def list_skipped(summaries: Sequence[Summary]) -> list[str]:
    """Return one line for each attack that has nothing to work on, why, and for which variants."""
    lines: dict[str, dict[str, None]] = {}
    for summary in summaries:
        for attack in (attack for run in summary.runs for attack in run.attacks):
            if attack.skipped is not None:
                where = f" on {attack.observation}" if attack.observation else ""
                line = f"{attack.attack}{where}: {attack.skipped}"
                lines.setdefault(line, {})[summary.label] = None
    return [
        line if len(labels) == len(summaries) else f"{line} ({', '.join(labels)})"
        for line, labels in lines.items()
    ]


def make_settings_table(summaries: Sequence[Summary]) -> Table:
    """Return the settings in which the variants differ, one column a variant."""
    tables = _flatten_each(summaries)
    return make_table(
        "Settings that differ",
        ("setting", *(s.label for s in summaries)),
        tuple(row for row in _make_setting_rows(tables) if len(set(row[1:])) > 1),
    )


def make_all_settings_table(summaries: Sequence[Summary]) -> Table:
    """Return every setting, one column a variant."""
    head = ("setting", *(s.label for s in summaries))
    return make_table("All settings", head, tuple(_make_setting_rows(_flatten_each(summaries))))


def _flatten_each(summaries: Sequence[Summary]) -> list[dict[str, object]]:
    return [
        dict(flatten_settings(dump_settings(s.runs[0].settings))) if s.runs else {}
        for s in summaries
    ]


def _make_setting_rows(tables: Sequence[dict[str, object]]) -> Iterable[tuple[str, ...]]:
    keys = dict.fromkeys(key for table in tables for key in table)
    return [(key, *(str(table.get(key, DASH)) for table in tables)) for key in keys]


def format_versions(result: RunResult) -> str:
    """Return the versions on one line."""
    return ", ".join(f"{name} {version}" for name, version in sorted(result.versions.items()))
