"""What in a run's numbers cannot be: signs that an attack, a law or a measurement is wrong."""

from collections.abc import Iterable
from math import log, sqrt
from statistics import fmean
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from fedcel.attacks.attack_row import AttackRow
from fedcel.leakage import fano_bound

NORMAL_QUANTILE = 1.96  # half widths are of 95 % intervals
RULE_OF_THREE = 3.0
CERTIFICATE_MARGIN = 2.0  # half widths above a bound: by chance one time in 20 000
ROUNDING_BITS = 1e-6  # that double precision leaves of nothing

Way = tuple[str | None, str, str | None, float | None, int]
"""How a trained attack was carried out: observation, attack, knowledge, budget, targets."""


class MeasuredLeak(BaseModel):
    """What result.json says of a message's leak: bits, their error and their upper bound.

    None where a version stored less.
    """

    model_config = ConfigDict(
        frozen=True, extra="ignore", alias_generator=lambda name: name.replace("_", "-")
    )

    information_bits: float | None = None
    information_half_width: float | None = None
    certificate_bits: float | None = None
    bits_beyond_label: float | None = None
    bits_half_width: float | None = None
    certificate_bits_within_class: float | None = None


class OptimalScores(NamedTuple):
    """What the optimal attacker's rows say on one observation, mean over attack seeds."""

    identification: float
    half_width: float
    identification_candidates: float
    candidates: float
    information_bits: float


class TrainedScores(NamedTuple):
    """What a trained attack's row says of one attack seed."""

    identification: float
    targets: float
    candidates: float


def find_contradictions(rows: Iterable[AttackRow], leak: MeasuredLeak | None = None) -> list[str]:
    """Find what cannot be in the rows of a run's attacks and in its measured leak.

    No trained attack identifies more often than the optimal one on the same observation, beyond
    the intervals of both; and that one not more often than its own information allows. Each attack
    is held to it as it was carried out: a mean over budgets, or over what the attacker knows, would
    hide that one cannot be. Not looked at are observations without an optimal attacker, attacks on
    fewer targets than it has candidates, and rows of versions that stored too little; nor bits
    without half widths, which may be above a certificate by chance.

    Args:
        rows: Of all attacks on one run.
        leak: What the run's result.json says; `MeasuredLeak.model_validate` reads it.

    Returns:
        A sentence for each contradiction.

    References:
        Cover and Thomas, Elements of Information Theory, 2006, theorem 2.10.1 (Fano's inequality).
    """
    rows = list(rows)
    optimal = summarise_optimal(rows)
    sentences = [text for name, best in optimal.items() for text in check_fano(name, best)]
    trained: dict[Way, list[TrainedScores]] = {}
    for row in rows:
        if row.identification_1 is not None and row.targets is not None:
            candidates = row.identification_candidates or row.targets
            scores = TrainedScores(row.identification_1, row.targets, candidates)
            way = row.observation, row.attack, row.knowledge, row.budget, row.targets
            trained.setdefault(way, []).append(scores)
    for (observation, attack, *_), seeds in trained.items():
        if observation in optimal:
            scores = TrainedScores(*map(fmean, zip(*seeds, strict=True)))
            sentences += check_optimal(observation, attack, scores, optimal[observation])
    return list(dict.fromkeys(sentences)) + check_certificate(leak or MeasuredLeak())


def summarise_optimal(rows: Iterable[AttackRow]) -> dict[str | None, OptimalScores]:
    """Return the optimal attacker's scores by observation, of the rows that say all of them."""
    seeds: dict[str | None, list[OptimalScores]] = {}
    for row in rows:
        values = (
            row.identification_optimal,
            row.identification_half_width,
            row.identification_candidates,
            row.candidates,
            row.information_bits,
        )
        measured = [value for value in values if value is not None]
        if len(measured) == len(values):
            seeds.setdefault(row.observation, []).append(OptimalScores(*measured))
    return {
        observation: OptimalScores(*map(fmean, zip(*scores, strict=True)))
        for observation, scores in seeds.items()
    }


def check_fano(observation: str | None, best: OptimalScores) -> list[str]:
    """Return what is wrong where identification is above what the information allows."""
    # A bootstrap of M successes has no width; by the rule of three 3 / M of cases may still fail.
    width = max(best.half_width, RULE_OF_THREE / best.candidates)
    nats = max(0.0, best.information_bits * log(2))
    limit = fano_bound(nats, round(best.identification_candidates))
    if best.identification - width <= limit:
        return []
    return [
        f"On {observation} the optimal attacker picks the right image in {best.identification:.3f} "
        f"of cases; its information allows {limit:.3f} (Fano): the law or the information is wrong."
    ]


def check_optimal(
    observation: str | None, attack: str, trained: TrainedScores, best: OptimalScores
) -> list[str]:
    """Return what is wrong where a trained attack identifies more often than the optimal one."""
    rate, limit = trained.identification, best.identification
    chance = sqrt(limit * (1 - limit) / trained.targets)
    half_width = NORMAL_QUANTILE * chance + best.half_width
    # Among fewer candidates the right one is easier to pick.
    if trained.candidates < best.identification_candidates or rate <= limit + half_width:
        return []
    return [
        f"On {observation} {attack} picks the right image in {rate:.3f} of cases, the optimal "
        f"attacker in {limit:.3f} +- {half_width:.3f}: the law is not that of the observation, or "
        f"{attack} saw targets."
    ]


def check_certificate(leak: MeasuredLeak) -> list[str]:
    """Return what is wrong where the message leaks more bits than its certificate allows.

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
