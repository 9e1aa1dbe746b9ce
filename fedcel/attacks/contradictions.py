"""Contradictions in a run's numbers: signs that an attack, a law or a measurement is wrong."""

from collections.abc import Iterable, Sequence
from math import log, sqrt
from statistics import fmean

from fedcel.attacks.attack_row import AttackRow
from fedcel.json_records import Number, Record
from fedcel.leakage import fano_bound
from fedcel.metrics import NORMAL_QUANTILE

CERTIFICATE_MARGIN = 2.0  # half widths above a bound: by chance one time in 20 000
ROUNDING_BITS = 1e-6  # that double precision leaves of nothing

OPTIMAL_FIELDS = (
    "identification_optimal",
    "identification_half_width",
    "identification_candidates",
    "information_bits",
)
"""Fields that a row of the optimal attacker must have to be checked."""


class MeasuredLeak(Record):
    """Leak of a message in result.json: bits, their error and bounds; None if not measured."""

    information_bits: Number = None
    information_half_width: Number = None
    certificate_bits: Number = None
    bits_beyond_label: Number = None
    bits_half_width: Number = None
    certificate_bits_within_class: Number = None
    population_bits: Number = None
    """Upper limit for unseen images by Student's t, an approximation."""
    population_bits_bernstein: Number = None
    population_beyond_label: Number = None
    population_beyond_label_bernstein: Number = None
    population_confidence: Number = None
    population_images: int | None = None
    """Images that the limits are computed of."""


def find_contradictions(rows: Iterable[AttackRow], leak: MeasuredLeak | None = None) -> list[str]:
    """Find contradictions in the rows of a run's attacks and in its measured leak.

    No trained attack identifies more often than the optimal one on the same observation, beyond
    the intervals of both; and that one not more often than its own information allows. Each attack
    is held to it as it was carried out: a mean over budgets, or over what the attacker knows, would
    hide that one cannot be. Not looked at are observations without an optimal attacker, attacks on
    fewer targets than it has candidates, and rows of versions that stored too little; nor bits
    without half widths, which may be above a certificate by chance.

    Args:
        rows: The rows of all attacks on one run.
        leak: What the run's result.json says; `MeasuredLeak.model_validate` reads it.

    Returns:
        A sentence for each contradiction.

    References:
        Cover and Thomas, Elements of Information Theory, 2006, theorem 2.10.1 (Fano's inequality).
    """
    rows = list(rows)
    optimal: dict[object, list[AttackRow]] = {}
    trained: dict[tuple[object, ...], list[AttackRow]] = {}
    for row in rows:
        if all(getattr(row, name) is not None for name in OPTIMAL_FIELDS):
            optimal.setdefault(row.observation, []).append(row)
        if row.identification_1 is not None and row.targets is not None:
            way = row.observation, row.attack, row.knowledge, row.budget, row.targets
            trained.setdefault(way, []).append(row)
    sentences = [text for seeds in optimal.values() for text in check_fano(seeds)]
    for seeds in trained.values():
        best = optimal.get(seeds[0].observation)
        sentences += check_optimal(seeds, best) if best else []
    return list(dict.fromkeys(sentences)) + check_certificate(leak or MeasuredLeak())


def mean_of(rows: Iterable[AttackRow], field: str) -> float:
    """Return the mean of a field that all rows have."""
    return fmean(getattr(row, field) for row in rows)


def check_fano(best: Sequence[AttackRow]) -> list[str]:
    """Find identification above the limit that the information sets."""
    rate = mean_of(best, "identification_optimal")
    half_width = mean_of(best, "identification_half_width")
    nats = max(0.0, mean_of(best, "information_bits") * log(2))
    limit = fano_bound(nats, round(mean_of(best, "identification_candidates")))
    if rate - half_width <= limit:
        return []
    return [
        f"On {best[0].observation} the optimal attacker picks the right image in {rate:.3f} of "
        f"cases; its information allows {limit:.3f} (Fano): the law or the information is wrong."
    ]


def check_optimal(seeds: Sequence[AttackRow], best: Sequence[AttackRow]) -> list[str]:
    """Find a trained attack that identifies more often than the optimal one."""
    rate, limit = mean_of(seeds, "identification_1"), mean_of(best, "identification_optimal")
    chance = sqrt(limit * (1 - limit) / mean_of(seeds, "targets"))
    half_width = NORMAL_QUANTILE * chance + mean_of(best, "identification_half_width")
    among = fmean(row.identification_candidates or row.targets or 0 for row in seeds)
    is_easier = among < mean_of(best, "identification_candidates")
    if is_easier or rate <= limit + half_width:
        return []
    attack = seeds[0].attack
    return [
        f"On {seeds[0].observation} {attack} picks the right image in {rate:.3f} of cases, the "
        f"optimal attacker in {limit:.3f} +- {half_width:.3f}: the law is not that of the "
        f"observation, or {attack} saw targets."
    ]


def check_certificate(leak: MeasuredLeak) -> list[str]:
    """Find bits above their certificate.

    The certificate bounds the information of exactly the images that the bits are measured of, so
    no more than the noise drawn may lift them above it. It is attained where features differ by far
    less than the noise: twice the half width keeps hundreds of runs from a false alarm.
    """
    sentences = []
    for bits, half_width, bound, unit in (
        (leak.information_bits, leak.information_half_width, leak.certificate_bits, "bits"),
        (
            leak.bits_beyond_label,
            leak.bits_half_width,
            leak.certificate_bits_within_class,
            "bits beyond the label",
        ),
    ):
        if bits is None or half_width is None or bound is None:
            continue
        if bits - CERTIFICATE_MARGIN * half_width > bound + ROUNDING_BITS:
            sentences.append(
                f"The message tells {bits:.3f} +- {half_width:.3f} {unit}; its certificate allows "
                f"{bound:.3f}: the law, the bits or the certificate is wrong."
            )
    return sentences
