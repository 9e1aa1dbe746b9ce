"""What in a run's numbers cannot be: signs that an attack, a law or a measurement is wrong."""

from collections.abc import Mapping, Sequence
from math import log, sqrt
from statistics import fmean

from fedcel.leakage import fano_bound

Row = Mapping[str, object]
NORMAL = 1.96  # half widths are of 95 % intervals
RULE_OF_THREE = 3.0
WIDTHS = 2.0  # half widths beyond which bits are above a bound: by chance one time in 20 000
ROUNDING = 1e-6  # bits that double precision leaves of nothing

BEST = (
    "identification-optimal",
    "identification-half-width",
    "identification-candidates",
    "candidates",
    "information-bits",
)
"""What the optimal attacker's row must say to be looked at."""
TRAINED = ("identification-1", "targets")
"""What a trained attack's row must say."""
WAY = ("observation", "attack", "knowledge", "budget", "targets")
"""How an attack was carried out: rows that differ in nothing else are its seeds."""
BOUNDED = (
    ("information-bits", "information-half-width", "certificate-bits", "bits"),
    (
        "bits-beyond-label",
        "bits-half-width",
        "certificate-bits-within-class",
        "bits beyond the label",
    ),
)
"""What result.json says was measured, its error, its upper bound, and their unit."""


def find_contradictions(rows: Sequence[Row], result: Row | None = None) -> list[str]:
    """Return a sentence for each contradiction in the rows of attacks, and in `result`.json.

    No trained attack identifies more often than the optimal one on the same observation, beyond
    the intervals of both; and that one not more often than its own information allows (Fano's
    inequality; Cover and Thomas, 2006, theorem 2.10.1). Each attack is held to it as it was carried
    out: a mean over budgets, or over what the attacker knows, would hide that one cannot be.
    Observations without an optimal attacker, attacks on fewer targets than it has candidates, and
    rows of versions that stored too little are not looked at. Nor is a `result` that holds no
    half widths: without them, bits above a certificate may be chance; see `check_certificate`.
    """
    best = group_rows(rows, BEST, WAY[:1])
    found = [said for (seen,), mine in best.items() for said in check_fano(seen, mine)]
    for (seen, attack, *_), theirs in group_rows(rows, TRAINED, WAY).items():
        if (seen,) in best:
            found += check_optimal(seen, attack, theirs, best[seen,])
    return list(dict.fromkeys(found)) + check_certificate(result or {})


def check_certificate(result: Row) -> list[str]:
    """Return what is wrong where the message leaks more bits than its certificate allows.

    The certificate bounds the information of exactly the codes that the bits are measured of, so
    no more than the noise drawn may lift them above it. It is attained where codes differ by far
    less than the noise: twice the half width keeps hundreds of runs from a false alarm.
    """
    found = []
    for measured, half_width, bound, unit in BOUNDED:
        if any(result.get(key) is None for key in (measured, half_width, bound)):
            continue
        bits, width, limit = (mean_score([result], key) for key in (measured, half_width, bound))
        if bits - WIDTHS * width > limit + ROUNDING:
            found.append(
                f"The message tells {bits:.3f} +- {width:.3f} {unit}; its certificate allows "
                f"{limit:.3f}: the law, the bits or the certificate is wrong."
            )
    return found


def group_rows(
    rows: Sequence[Row], needed: Sequence[str], way: Sequence[str]
) -> dict[tuple[str, ...], list[Row]]:
    """Return the rows that say all that is needed, by what they say of `way`."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if all(row.get(key) is not None for key in needed):
            found.setdefault(tuple(str(row.get(key)) for key in way), []).append(row)
    return found


def mean_score(rows: Sequence[Row], key: str) -> float:
    """Return the mean of a number over rows."""
    return fmean(float(str(row[key])) for row in rows)


def check_fano(seen: str, best: Sequence[Row]) -> list[str]:
    """Return what is wrong where identification is above what the information allows."""
    rate = mean_score(best, "identification-optimal")
    # A bootstrap of M successes has no width; by the rule of three 3 / M of cases may still fail.
    width = max(
        mean_score(best, "identification-half-width"),
        RULE_OF_THREE / mean_score(best, "candidates"),
    )
    nats = max(0.0, mean_score(best, "information-bits") * log(2))
    limit = fano_bound(nats, round(mean_score(best, "identification-candidates")))
    if rate - width <= limit:
        return []
    return [
        f"On {seen} the optimal attacker picks the right image in {rate:.3f} of cases; its "
        f"information allows {limit:.3f} (Fano): the law or the information is wrong."
    ]


def check_optimal(seen: str, attack: str, theirs: Sequence[Row], best: Sequence[Row]) -> list[str]:
    """Return what is wrong where a trained attack identifies more often than the optimal one."""
    rate, limit = mean_score(theirs, "identification-1"), mean_score(best, "identification-optimal")
    chance = sqrt(limit * (1 - limit) / mean_score(theirs, "targets"))
    width = NORMAL * chance + mean_score(best, "identification-half-width")
    among = [row.get("identification-candidates", row["targets"]) for row in theirs]
    few = fmean(float(str(one)) for one in among) < mean_score(best, "identification-candidates")
    if few or rate <= limit + width:  # among fewer candidates the right one is easier to pick
        return []
    return [
        f"On {seen} {attack} picks the right image in {rate:.3f} of cases, the optimal attacker "
        f"in {limit:.3f} +- {width:.3f}: the law is not that of the observation, or {attack} saw "
        "targets."
    ]
