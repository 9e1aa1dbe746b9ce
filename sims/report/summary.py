"""Means and intervals over seeds: one summary per variant and strength."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fedcel.settings import burn_in_rounds
from sims.report.records import Attack, Book, Row, Run
from sims.results.estimate import UNKNOWN, Estimate, estimate
from sims.results.intervals import crossed_interval, mean_samples, resample_rows
from sims.results.worst_attack import worst_attack


def settled_accuracy(run: Run) -> float | None:
    """Return the mean validation accuracy of the rounds after burn-in, or the last round's."""
    end = burn_in_rounds(run.settings)
    late = [event for event in run.events if event.round > end] or list(run.events[-1:])
    return estimate(event.accuracy for event in late).mean


def select_decoder_rows(run: Run) -> list[Attack]:
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
    label_only: float | None = None
    bits_of_seed: dict[int, float] = field(default_factory=dict)
    bits_again: dict[int, list[float]] = field(default_factory=dict)
    runs: tuple[Run, ...] = ()


def summarise_book(book: Book) -> tuple[Summary, ...]:
    """Return one summary for each variant and strength, in the order of the rows."""
    groups: dict[tuple[str, float | None], list[Row]] = {}
    for row in book.rows:
        groups.setdefault((row.variant, row.strength), []).append(row)
    return tuple(_summary(rows, book, groups) for rows in groups.values())


def _summary(rows: list[Row], book: Book, groups: Iterable[tuple[str, float | None]]) -> Summary:
    first, runs = rows[0], tuple(book.runs[row.run] for row in rows)
    last = runs[0].result
    decoder = [attack for run in runs for attack in select_decoder_rows(run)]
    again = resample_rows([row.model_dump(by_alias=True) for row in rows], book.images)

    def mean(key: str, values: Iterable[float | None]) -> Estimate:
        return crossed_interval(values, mean_samples(again, key))

    return Summary(
        variant=first.variant,
        label=_label(first, groups),
        title=first.title or first.variant,
        strength=first.strength,
        undefended=bool(first.undefended),
        seeds=tuple(row.seed for row in rows),
        nll=estimate(run.result.nll for run in runs),
        ece=estimate(run.result.ece for run in runs),
        accuracy=mean("accuracy", (row.accuracy for row in rows)),
        validation=estimate(settled_accuracy(run) for run in runs if run.events),
        bits=mean("bits-beyond-label", (row.bits_beyond_label for row in rows)),
        identification=mean("identification-optimal", (row.identification_optimal for row in rows)),
        certificate=estimate(row.certificate_bits for row in rows),
        certificate_within=estimate(run.result.certificate_bits_within_class for run in runs),
        decoder_mse=estimate(attack.mse for attack in decoder),
        decoder_psnr=estimate(attack.psnr for attack in decoder),
        decoder_ssim=estimate(attack.ssim for attack in decoder),
        mse=mean("mse", (row.mse for row in rows)),
        picked=mean("identification-1", (row.identification_1 for row in rows)),
        step_ratio=estimate(row.train_step_ratio for row in rows),
        worst=tuple(sorted({row.worst_attack for row in rows if row.worst_attack})),
        failed=tuple(sorted({name for row in rows for name in row.failed_attacks})),
        oracle_mse=estimate(row.oracle_mse for row in rows).mean,
        mean_mse=estimate(row.mean_mse for row in rows).mean,
        noise=first.noise,
        cap=last.bits_cap,
        candidates=last.candidates,
        choices=last.identification_candidates,
        label_only=last.label_only_identification,
        bits_of_seed={r.seed: r.bits_beyond_label for r in rows if r.bits_beyond_label is not None},
        bits_again={row.seed: row_samples(again, i) for i, row in enumerate(rows)},
        runs=runs,
    )


def row_samples(again: Iterable[Sequence[Mapping[str, object]]], number: int) -> list[float]:
    """Return a row's bits in each sample of the test images."""
    found = (rows[number]["bits-beyond-label"] for rows in again)
    return [float(str(value)) for value in found if value is not None]


def _label(row: Row, groups: Iterable[tuple[str, float | None]]) -> str:
    """Return the human name; a strength is added where it tells two groups apart."""
    name = row.title or row.variant
    swept = sum(variant == row.variant for variant, _ in groups) > 1
    return f"{name}, {row.strength:g}" if swept and row.strength is not None else name
