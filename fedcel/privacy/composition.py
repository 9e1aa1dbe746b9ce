"""What many answers cost together: the sum, and the exact curve by dp-accounting.

Both protect the inputs of all the queries against whoever reads all the answers. The ledger books
the sum, which holds for any mix of mechanisms and without a number of answers fixed beforehand.
"""

import math
from collections.abc import Mapping
from functools import reduce
from typing import Literal, NamedTuple

from fedcel.extras import import_optional
from fedcel.privacy.gaussian_calibration import least_epsilon
from fedcel.privacy.noise_mechanisms import Gaussian
from fedcel.privacy.protocol import Mechanism

FINEST = 1e-4
"""Step of the grid of losses of several prices, in nats; coarser where the losses reach far."""
STEPS = 100_000


class Composition(NamedTuple):
    """The privacy of so many answers together, and which theorem says so."""

    method: Literal["basic", "pld"]
    answers: int
    epsilon: float
    delta: float


def compose_basic(epsilon: float, delta: float, count: int) -> Composition:
    """Return (count epsilon, count delta); Dwork and Roth, 2014, theorem 3.16.

    ValueError unless epsilon is finite and above 0, delta in [0, 1) and count 1 or more. A delta of
    1 or more promises nothing.
    """
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon is {epsilon}, must be finite and above 0")
    if not 0 <= delta < 1:
        raise ValueError(f"delta is {delta}, must be in [0, 1)")
    if count < 1:
        raise ValueError(f"count is {count}, must be 1 or more answers")
    return Composition("basic", count, count * epsilon, count * delta)


def compose_exactly(mechanism: Mechanism, count: int, delta: float) -> Composition:
    """Return the smallest epsilon at a `delta` for all answers together, never understated.

    For inputs that may depend on earlier answers, `count` fixed beforehand. Gaussians are one with
    a larger sensitivity (Balle and Wang, ICML 2018); others compose as privacy loss distributions
    (Sommer, Meiser and Mohammadi, PoPETs 2019), each as the worst one with its epsilon and delta
    (Kairouz, Oh and Viswanath, ICML 2015). Infinity where `delta` is less than the mechanism's own
    deltas leave. ValueError as `compose_basic`, and on a delta that is not in (0, 1).
    """
    compose_basic(mechanism.epsilon, mechanism.delta, count)
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta}, must be above 0 and below 1; try 1e-6")
    if not isinstance(mechanism, Gaussian):
        return compose_prices({(mechanism.epsilon, mechanism.delta): count}, delta)
    # So many Gaussians are one, of a sensitivity sqrt(count) times as large.
    shift = math.sqrt(count) * mechanism.sensitivity / mechanism.sigma
    return Composition("pld", count, least_epsilon(delta, shift), delta)


def compose_prices(prices: Mapping[tuple[float, float], int], delta: float) -> Composition:
    """Return the smallest epsilon at `delta` of answers of several prices, never understated.

    `prices`: how many answers cost each (epsilon, delta); every one counts as the worst mechanism
    of its price, composed as in `compose_exactly`. Infinity where `delta` is less than theirs
    leave.
    ValueError as `compose_basic`, without any answer, and on a delta that is not in (0, 1).
    """
    # Imported here: a second, for SciPy's laws.
    parameters = import_optional("dp_accounting.pld.common").DifferentialPrivacyParameters
    losses_of = import_optional("dp_accounting.pld.privacy_loss_distribution")
    if not prices:
        raise ValueError("there are no answers; nothing was spent")
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta}, must be above 0 and below 1; try 1e-6")
    sums = [compose_basic(*price, count) for price, count in prices.items()]
    (first, _), *others = prices
    whole = math.fsum(each.epsilon for each in sums)
    step = max(FINEST, whole / STEPS) if others else first  # of one price, losses are on the grid
    losses = [
        losses_of.from_privacy_parameters(parameters(*price), step).self_compose(count)
        for price, count in prices.items()
    ]
    found = reduce(losses_of.PrivacyLossDistribution.compose, losses).get_epsilon_for_delta(delta)
    return Composition("pld", sum(prices.values()), float(found), delta)
