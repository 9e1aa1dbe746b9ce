"""The tables of the page: rows of text, formatted once, from the numbers that were read."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from fedcel.settings import dump_settings, flatten_settings
from sims.report.records import Attack, Private, Result, Scores
from sims.report.summary import Summary
from sims.report.table import Table, format_columns, make_table
from sims.report.text import (
    DASH,
    format_deviation,
    format_interval,
    format_number,
    format_share,
    name_worst_attacks,
)
from sims.results.estimate import Estimate, estimate

MAIN = (
    "variant",
    "accuracy, %",
    "NLL",
    "ECE",
    "bits beyond label",
    "optimal identification, %",
    "certificate, bits",
    "certificate beyond label, bits",
    "decoder MSE",
    "decoder PSNR, dB",
    "decoder SSIM",
    "worst attack",
    "its MSE",
)


def make_main_table(summaries: Sequence[Summary]) -> Table:
    """Return one row per summary, and the two anchors."""
    rows = [
        (
            s.label,
            format_interval(s.accuracy, 1, 100),
            format_interval(s.nll, 3),
            format_interval(s.ece, 3),
            format_interval(s.bits, 2),
            format_interval(s.identification, 1, 100),
            format_interval(s.certificate, 2),
            format_interval(s.certificate_within, 2),
            format_deviation(s.decoder_mse, 4),
            format_deviation(s.decoder_psnr, 1),
            format_deviation(s.decoder_ssim, 3),
            name_worst_attacks(s),
            format_interval(s.mse, 4),
        )
        for s in summaries
    ]
    return make_table("Variants", MAIN, (*rows, *_anchors(summaries)))


def _anchors(summaries: Sequence[Summary]) -> list[tuple[str, ...]]:
    """Return what is known without any message: nothing beyond the label, by definition."""
    blank = (DASH,) * 3
    label = estimate(s.label_only for s in summaries).mean
    chance = estimate(1 / s.choices if s.choices else None for s in summaries).mean
    found: list[tuple[str, ...]] = []
    for name, right, mse in (
        ("label only (class-mean oracle)", label, estimate(s.oracle_mse for s in summaries)),
        ("nothing (mean image)", chance, estimate(s.mean_mse for s in summaries)),
    ):
        after = (
            format_number(0.0, 2),
            format_share(right),
            DASH,
            DASH,
            format_number(mse.mean, 4),
        )
        found.append((name, *blank, *after, *(DASH,) * 4))
    return found


DETAILS = (
    ("answers alone, bits", "answer_bits", 2),
    ("bits beyond label", "bits_beyond_label", 2),
    ("certificate beyond label, bits", "certificate_bits_within_class", 2),
    ("negentropy, bits", "gaussianity_gap_bits", 2),
    ("of it in single directions", "gaussianity_direction_bits", 2),
    ("excess kurtosis", "gaussianity_kurtosis", 1),
    ("spread within classes, z²", "within_class_spread", 4),
    ("between clients, z²", "between_client_spread", 4),
)


def make_details_table(summaries: Sequence[Summary]) -> Table:
    """Return what lies behind each leak: its bounds, the shape of the classes, their spread."""
    head = ("variant", "noise σ", *(name for name, _, _ in DETAILS))
    rows = []
    for s in summaries:
        results = [run.result for run in s.runs]
        cells = (
            format_interval(estimate(getattr(r, k) for r in results), n) for _, k, n in DETAILS
        )
        rows.append((s.label, DASH if s.noise is None else f"{s.noise:g}", *cells))
    return make_table("Behind the leak", head, rows)


def make_posterior_table(summaries: Sequence[Summary]) -> Table:
    """Return the scores of the posterior's average beside those of the point model."""
    head = ("variant", "predictor", "accuracy, %", "NLL", "ECE", "Brier")
    rows = []
    for s in summaries:
        results = [run.result for run in s.runs]
        rows.append((s.label, name_predictor(results), *_scores(results)))
        points = [r.point for r in results if r.point is not None]
        if points:
            rows.append((s.label, "point model", *_scores(points)))
    return make_table("Posterior average and point model", head, rows, words=2)


def name_predictor(results: Sequence[Result]) -> str:
    """Return what made a run's predictions: the samples it kept, or else its last model."""
    kept = estimate(r.samples for r in results).mean
    if kept is None:
        return "average of the samples"
    return f"average of {kept:g} samples" if kept else "last model (no samples kept)"


def make_device_table(summaries: Sequence[Summary]) -> Table:
    """Return what each variant costs the device, equal over its seeds."""
    sent = ("FLOPs per inference", "bytes per inference")
    head = ("variant", "parameters", "in the encoder", *sent, "training step, ×")
    keys = ("parameters", "encoder_parameters", "flops_per_inference", "bytes_per_inference")
    rows = []
    for s in summaries:
        results = [run.result for run in s.runs]
        costs = (estimate(getattr(r, key) for r in results).mean for key in keys)
        step = format_number(s.step_ratio.mean, 2)
        rows.append((s.label, *(format_number(cost, 0) for cost in costs), step))
    return make_table("Cost on the device", head, rows)


def _scores(scores: Sequence[Scores]) -> tuple[str, ...]:
    return (
        format_interval(estimate(s.accuracy for s in scores), 1, 100),
        *(
            format_interval(estimate(getattr(s, k) for s in scores), 3)
            for k in ("nll", "ece", "brier")
        ),
    )


def make_private_table(summaries: Sequence[Summary]) -> Table:
    """Return what private answers are worth at each epsilon, mean over training seeds."""
    after = ("confidence before, %", "confidence after, %", "ceiling, %")
    head = ("variant", "ε per answer", "accuracy, %", "top-1 kept, %", *after)
    rows = []
    for s in summaries:
        results = [run.result for run in s.runs]
        epsilons = dict.fromkeys(e for r in results for e in r.private)
        for epsilon in sorted(epsilons, key=_size):
            found = [r.private[epsilon] for r in results if epsilon in r.private]
            rows.append((s.label, epsilon, *_utility(found)))
    return make_table("Private answers", head, rows)


def _utility(found: Sequence[Private]) -> tuple[str, ...]:
    keys = ("accuracy", "top1_kept", "confidence_before", "confidence_after", "ceiling")
    return tuple(format_interval(estimate(getattr(p, key) for p in found), 1, 100) for key in keys)


def _size(epsilon: str) -> float:
    try:
        return float(epsilon)
    except ValueError:
        return float("inf")  # an unusual name goes last, it is still shown


Cell = Callable[[Attack], str]
ATTACK: tuple[tuple[str, Cell], ...] = (
    ("attack", lambda a: a.attack),
    ("sees", lambda a: a.observation or DASH),
    ("knows", lambda a: a.knowledge or DASH),
    ("attack seed", lambda a: DASH if a.seed is None else str(a.seed)),
    ("budget", lambda a: DASH if a.budget is None else f"{a.budget:g}"),
    ("targets", lambda a: format_number(a.targets, 0)),
    ("queries paid for", lambda a: format_number(a.queries, 0)),
    ("MSE", lambda a: format_number(a.mse, 4)),
    ("PSNR, dB", lambda a: format_number(a.psnr, 1)),
    ("SSIM", lambda a: format_number(a.ssim, 3)),
    ("identified, %", lambda a: format_share(_first(a.identification_1, a.identification_optimal))),
    ("in first 5, %", lambda a: format_share(a.identification_5)),
    ("label right, %", lambda a: format_share(a.label_accuracy)),
    ("bits beyond label", lambda a: format_number(a.bits_beyond_label, 2)),
    ("seconds", lambda a: format_number(a.seconds, 1)),
)


def make_attacks_table(summaries: Sequence[Summary]) -> Table:
    """Return every row of every attack that was run."""
    rows = [
        (s.label, str(seed), *(cell(attack) for _, cell in ATTACK))
        for s in summaries
        for seed, run in zip(s.seeds, s.runs, strict=True)
        for attack in run.attacks
        if attack.skipped is None
    ]
    head = ("variant", "training seed", *(name for name, _ in ATTACK))
    return make_table("Every attack and seed", head, rows)


def format_attack_rows(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows of attacks as plain text: what each attack found, or why it was not run."""
    read = [Attack.model_validate(row) for row in rows]
    body = [[cell(one) for _, cell in ATTACK] for one in read if one.skipped is None]
    shown = [i for i in range(len(ATTACK)) if any(line[i] != DASH for line in body)]
    head = [ATTACK[i][0] for i in shown]
    found = [[line[i] for i in shown] for line in body]
    lines = [format_columns(make_table("Attacks", head, found))] if body else []
    lines += [
        f"{a.attack} on {a.observation or 'anything'}: {a.skipped}" for a in read if a.skipped
    ]
    return "\n".join(lines) + "\n"


def list_skipped(summaries: Sequence[Summary]) -> list[str]:
    """Return one line for each attack that has nothing to work on, why, and for which variants."""
    found: dict[str, dict[str, None]] = {}
    for s in summaries:
        for a in (a for run in s.runs for a in run.attacks if a.skipped is not None):
            where = f" on {a.observation}" if a.observation else ""
            found.setdefault(f"{a.attack}{where}: {a.skipped}", {})[s.label] = None
    return [
        line if len(labels) == len(summaries) else f"{line} ({', '.join(labels)})"
        for line, labels in found.items()
    ]


def make_settings_table(summaries: Sequence[Summary]) -> Table:
    """Return the settings in which the variants differ, one column a variant."""
    tables = _settings(summaries)
    return make_table(
        "Settings that differ",
        ("setting", *(s.label for s in summaries)),
        tuple(row for row in _spread(tables) if len(set(row[1:])) > 1),
    )


def make_all_settings_table(summaries: Sequence[Summary]) -> Table:
    """Return every setting, one column a variant."""
    head = ("setting", *(s.label for s in summaries))
    return make_table("All settings", head, tuple(_spread(_settings(summaries))))


def _settings(summaries: Sequence[Summary]) -> list[dict[str, object]]:
    return [
        dict(flatten_settings(dump_settings(s.runs[0].settings))) if s.runs else {}
        for s in summaries
    ]


def _spread(tables: Sequence[dict[str, object]]) -> Iterable[tuple[str, ...]]:
    keys = dict.fromkeys(key for table in tables for key in table)
    return [(key, *(str(table.get(key, DASH)) for table in tables)) for key in keys]


def format_versions(result: Result) -> str:
    """Return the versions on one line."""
    return ", ".join(f"{name} {version}" for name, version in sorted(result.versions.items()))


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def bar_length(value: Estimate, cap: float | None) -> float | None:
    """Return the length of a bar in percent of the cap; None where it cannot be drawn."""
    if value.mean is None or not cap:
        return None
    return 100 * min(max(value.mean / cap, 0.0), 1.0)
