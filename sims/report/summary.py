"""Means and intervals over seeds: one summary per variant and strength."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import scipy

from fedcel.settings import burn_in_rounds
from sims.report.records import Attack, Book, Row, Run
from sims.worst import worst_attack

LEAST = 3
"""Seeds below which no interval is given."""


@dataclass(frozen=True)
class Estimate:
    """A mean over n values; `half` is half the width of its 95 % t-interval, `sd` their spread."""

    mean: float | None = None
    half: float | None = None
    sd: float | None = None
    n: int = 0


def estimate(values: Iterable[float | None]) -> Estimate:
    """Return mean, Student's 95 % half-width (3 values or more) and sd; None is left out."""
    known = [value for value in values if value is not None]
    if not known:
        return Estimate()
    mean = sum(known) / len(known)
    if len(known) < 2:
        return Estimate(mean, n=len(known))
    sd = math.sqrt(sum((value - mean) ** 2 for value in known) / (len(known) - 1))
    t = float(scipy.stats.t.ppf(0.975, len(known) - 1))
    half = t * sd / math.sqrt(len(known)) if len(known) >= LEAST else None
    return Estimate(mean, half, sd, len(known))


def settled(run: Run) -> float | None:
    """Return the mean validation accuracy of the rounds after burn-in, or the last round's."""
    end = burn_in_rounds(run.settings)
    late = [event for event in run.events if event.round > end] or list(run.events[-1:])
    return estimate(event.accuracy for event in late).mean


def decoders(run: Run) -> list[Attack]:
    """Return the decoder's runs, one for each attack seed, with the run's own attack settings.

    Where it was attacked with others only, of those that rebuilt images best.
    """
    found = [(a.who, a.mse) for a in run.attacks if a.attack == "decoder" and a.mse is not None]
    how = run.settings.attack
    own = [(w, e) for w, e in found if (w.knowledge, w.budget) == (how.knowledge, how.budget)]
    chosen = worst_attack(own or found)
    return [attack for attack in run.attacks if attack.who == chosen]


@dataclass(frozen=True)
class Summary:
    """One variant at one strength; estimates go over training seeds.

    The `decoder_` estimates go over attack seeds (and training seeds); `cap` is in bits; `mse` and
    `picked`, how often its image is nearest to the right original, are of the worst trained attack;
    `validation` is the accuracy on the validation set, mean over the rounds after burn-in: one
    round's of a small set moves by points. `undefended`: neither defended nor swept.
    """

    variant: str
    label: str
    title: str = ""
    strength: float | None = None
    undefended: bool = False
    seeds: tuple[int, ...] = (0,)
    accuracy: Estimate = Estimate()
    validation: Estimate = Estimate()
    nll: Estimate = Estimate()
    ece: Estimate = Estimate()
    bits: Estimate = Estimate()
    identification: Estimate = Estimate()
    certificate: Estimate = Estimate()
    certificate_within: Estimate = Estimate()
    decoder_mse: Estimate = Estimate()
    decoder_psnr: Estimate = Estimate()
    decoder_ssim: Estimate = Estimate()
    mse: Estimate = Estimate()
    picked: Estimate = Estimate()
    step_ratio: Estimate = Estimate()
    worst: tuple[str, ...] = ()
    oracle_mse: float | None = None
    mean_mse: float | None = None
    noise: float | None = None
    cap: float | None = None
    candidates: int | None = None
    choices: int | None = None
    label_only: float | None = None
    bits_of_seed: dict[int, float] = field(default_factory=dict)
    runs: tuple[Run, ...] = ()


def summarise(book: Book) -> tuple[Summary, ...]:
    """Return one summary for each variant and strength, in the order of the rows."""
    groups: dict[tuple[str, float | None], list[Row]] = {}
    for row in book.rows:
        groups.setdefault((row.variant, row.strength), []).append(row)
    return tuple(_summary(rows, book, groups) for rows in groups.values())


def _summary(rows: list[Row], book: Book, groups: Iterable[tuple[str, float | None]]) -> Summary:
    first, runs = rows[0], tuple(book.runs[row.run] for row in rows)
    last = runs[0].result
    decoder = [attack for run in runs for attack in decoders(run)]
    return Summary(
        variant=first.variant,
        label=_label(first, groups),
        title=first.title or first.variant,
        strength=first.strength,
        undefended=bool(first.undefended),
        seeds=tuple(row.seed for row in rows),
        nll=estimate(run.result.nll for run in runs),
        ece=estimate(run.result.ece for run in runs),
        accuracy=estimate(row.accuracy for row in rows),
        validation=estimate(settled(run) for run in runs if run.events),
        bits=estimate(row.bits_beyond_label for row in rows),
        identification=estimate(row.identification_optimal for row in rows),
        certificate=estimate(row.certificate_bits for row in rows),
        certificate_within=estimate(run.result.certificate_bits_within_class for run in runs),
        decoder_mse=estimate(attack.mse for attack in decoder),
        decoder_psnr=estimate(attack.psnr for attack in decoder),
        decoder_ssim=estimate(attack.ssim for attack in decoder),
        mse=estimate(row.mse for row in rows),
        picked=estimate(row.identification_1 for row in rows),
        step_ratio=estimate(row.train_step_ratio for row in rows),
        worst=tuple(sorted({row.worst_attack for row in rows if row.worst_attack})),
        oracle_mse=estimate(row.oracle_mse for row in rows).mean,
        mean_mse=estimate(row.mean_mse for row in rows).mean,
        noise=first.noise,
        cap=last.bits_cap,
        candidates=last.candidates,
        choices=last.identification_candidates,
        label_only=last.label_only_identification,
        bits_of_seed={r.seed: r.bits_beyond_label for r in rows if r.bits_beyond_label is not None},
        runs=runs,
    )


def _label(row: Row, groups: Iterable[tuple[str, float | None]]) -> str:
    """Return the human name; a strength is added where it tells two groups apart."""
    name = row.title or row.variant
    swept = sum(variant == row.variant for variant, _ in groups) > 1
    return f"{name}, {row.strength:g}" if swept and row.strength is not None else name
