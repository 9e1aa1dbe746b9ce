"""Means and intervals over seeds: one summary per variant and strength."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from fedcel.attacks import AttackRow
from fedcel.metrics import is_at_chance
from fedcel.settings import burn_in_rounds
from sims.report.book import Book, FinishedRun
from sims.results import (
    ACCURACY,
    BITS,
    IDENTIFICATION,
    MSE,
    RIGHT_IMAGE,
    UNKNOWN,
    BenchRow,
    Column,
    Estimate,
    average_seeds,
    crossed_interval,
    estimate,
    find_worst_attack,
    group_by_attack,
    hold_to_common,
    hold_to_common_per_point,
    mean_samples,
    resample_rows,
)


def settled_accuracy(run: FinishedRun) -> float | None:
    """Return the mean validation accuracy of the rounds after burn-in, or the last round's."""
    end = burn_in_rounds(run.settings)
    late = [event for event in run.events if event.round > end] or list(run.events[-1:])
    return estimate(event.accuracy for event in late).mean


def read_epsilon(name: str) -> float:
    """Return the epsilon that names private answers; infinity where it is no number."""
    try:
        return float(name)
    except ValueError:
        return math.inf


def select_decoder_rows(run: FinishedRun) -> list[AttackRow]:
    """Return the decoder's runs, one for each attack seed, with the run's own attack settings.

    Where it was attacked with others only, of those that rebuilt images best.
    """
    attacks = group_by_attack(row for row in run.attacks if row.attack == "decoder")
    default = run.settings.attack
    configured = {
        attack: rows
        for attack, rows in attacks.items()
        if (attack.knowledge, attack.budget) == (default.knowledge, default.budget)
    }
    worst = find_worst_attack(average_seeds(rows) for rows in (configured or attacks).values())
    return attacks[worst.id] if worst else []


@dataclass(frozen=True)
class Summary:
    """One variant at one strength; estimates go over training seeds.

    Those of accuracy, bits, identification, `mse` and `picked` over test images, too, where values
    of each image were kept; see `sims.results.intervals`.

    The `decoder_` estimates go over attack seeds (and training seeds); `cap` is in bits; `mse` and
    `picked`, how often its image is nearest to the right original, are of the worst trained attack;
    `validation` is the accuracy on the validation set, mean over the rounds after burn-in: one
    round's of a small set moves by points. `undefended`: neither defended nor swept.
    `bits_again`: by seed, in bootstrap samples of the test images, the same in all summaries.
    """

    variant: str
    label: str
    title: str = ""
    strength: float | None = None
    undefended: bool = False
    seeds: tuple[int, ...] = (0,)
    accuracy: Estimate = UNKNOWN
    validation: Estimate = UNKNOWN
    nll: Estimate = UNKNOWN
    ece: Estimate = UNKNOWN
    bits: Estimate = UNKNOWN
    identification: Estimate = UNKNOWN
    certificate: Estimate = UNKNOWN
    certificate_within: Estimate = UNKNOWN
    decoder_mse: Estimate = UNKNOWN
    decoder_psnr: Estimate = UNKNOWN
    decoder_ssim: Estimate = UNKNOWN
    mse: Estimate = UNKNOWN
    picked: Estimate = UNKNOWN
    step_ratio: Estimate = UNKNOWN
    worst: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    """Attacks that failed there where nobody foresaw it: the worst is that of the others."""
    oracle_mse: float | None = None
    mean_mse: float | None = None
    noise: float | None = None
    cap: float | None = None
    candidates: int | None = None
    choices: int | None = None
    picked_among: int | None = None
    """How many images the worst attacks picked among; None where seeds differ or it is unknown."""
    label_only: float | None = None
    bits_of_seed: dict[int, float] = field(default_factory=dict)
    bits_again: dict[int, list[float]] = field(default_factory=dict)
    runs: tuple[FinishedRun, ...] = ()
    chance: float | None = None
    """Accuracy of who always names the most frequent class; None where it is unknown."""

    @property
    def learned_nothing(self) -> bool:
        """Say whether its accuracy cannot be told from a guess: its leak means nothing then."""
        accuracy, chance = self.accuracy.mean, self.chance
        if accuracy is None or chance is None or not self.candidates:
            return False
        return is_at_chance(accuracy, self.candidates, chance)


def summarise_book(book: Book, common: bool = False) -> tuple[Summary, ...]:
    """Return one summary for each variant and strength, in the order of the rows.

    The worst attack is that of those that all seeds have met; with `common` that of those that all
    cells have met: curves join strengths, and a stronger attack at one alone would bend them.
    """
    groups: dict[tuple[str, float | None], list[BenchRow]] = {}
    for row in (hold_to_common if common else hold_to_common_per_point)(book.rows):
        groups.setdefault(row.point, []).append(row)
    return tuple(_summarise_point(rows, book, groups) for rows in groups.values())


def _summarise_point(
    rows: list[BenchRow], book: Book, points: Iterable[tuple[str, float | None]]
) -> Summary:
    first = rows[0]
    runs = tuple(book.runs[row.run] for row in rows)
    last = runs[0].result
    decoder = [attack for run in runs for attack in select_decoder_rows(run)]
    samples = resample_rows(rows, book.images)

    def mean(column: Column) -> Estimate:
        values = [row.measure(column.key) for row in rows]
        return crossed_interval(values, mean_samples(samples, column.key))

    return Summary(
        variant=first.variant,
        label=_label_point(first, points),
        title=first.name,
        strength=first.strength,
        undefended=bool(first.undefended),
        seeds=tuple(row.seed for row in rows),
        nll=estimate(run.result.nll for run in runs),
        ece=estimate(run.result.ece for run in runs),
        accuracy=mean(ACCURACY),
        validation=estimate(settled_accuracy(run) for run in runs if run.events),
        bits=mean(BITS),
        identification=mean(IDENTIFICATION),
        certificate=estimate(row.certificate_bits for row in rows),
        certificate_within=estimate(run.result.certificate_bits_within_class for run in runs),
        decoder_mse=estimate(attack.mse for attack in decoder),
        decoder_psnr=estimate(attack.psnr for attack in decoder),
        decoder_ssim=estimate(attack.ssim for attack in decoder),
        mse=mean(MSE),
        picked=mean(RIGHT_IMAGE),
        step_ratio=estimate(row.train_step_ratio for row in rows),
        worst=tuple(sorted({row.worst.attack for row in rows if row.worst})),
        failed=tuple(sorted({name for row in rows for name in row.failed_attacks})),
        oracle_mse=estimate(row.measure("oracle-mse") for row in rows).mean,
        mean_mse=estimate(row.measure("mean-mse") for row in rows).mean,
        noise=first.noise,
        cap=last.bits_cap,
        candidates=last.candidates,
        choices=last.identification_candidates,
        picked_among=count_choices(rows, last.identification_candidates),
        label_only=last.label_only_identification,
        bits_of_seed={r.seed: r.bits_beyond_label for r in rows if r.bits_beyond_label is not None},
        bits_again={
            row.seed: [sample[number][BITS.key] for sample in samples]
            for number, row in enumerate(rows)
        },
        runs=runs,
        chance=last.chance_accuracy,
    )


def count_choices(rows: Iterable[BenchRow], choices: int | None) -> int | None:
    """Return of how many images the worst attacks picked: of fewer where they rebuilt fewer.

    `choices` are those of the optimal attacker. None where rows differ in it, or nothing says it.
    """
    counts = {
        row.worst.identification_candidates or min(choices, row.worst.targets or choices)
        for row in rows
        if row.worst and row.worst.identification_1 is not None and choices is not None
    }
    return counts.pop() if len(counts) == 1 else None


def _label_point(row: BenchRow, points: Iterable[tuple[str, float | None]]) -> str:
    """Return the human name; a strength is added where it tells two groups apart."""
    swept = sum(variant == row.variant for variant, _ in points) > 1
    return f"{row.name}, {row.strength:g}" if swept and row.strength is not None else row.name
