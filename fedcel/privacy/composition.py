"""What many answers cost together: the sum, and the exact curve by dp-accounting.

Both protect the inputs of all the queries against whoever reads all the answers. The ledger books
the sum, which holds for any mix of mechanisms and without a number of answers fixed beforehand.
"""

import math
from collections.abc import Mapping
from functools import reduce
from typing import Literal, NamedTuple

from fedcel.extras import import_optional
from fedcel.privacy.budget_units import read_decimal
from fedcel.privacy.epsilon_range import check_epsilon
from fedcel.privacy.gaussian_calibration import least_epsilon
from fedcel.privacy.noise_mechanisms import Gaussian
from fedcel.privacy.protocol import Mechanism
from fedcel.ranges import CHANCE, FRACTION, check_whole

SMALLEST_STEP = 1e-4
"""Step of the grid of losses of several prices, in nats; coarser where the losses reach far."""
MAX_STEPS = 100_000


class Composition(NamedTuple):
    """The privacy of so many answers together, and which theorem says so.

    Attributes:
        method: `basic`, the sum, or `pld`, exact.
        answers: How many.
        epsilon: Epsilon of all answers together, in nats.
        delta: Delta of all answers together.
    """

    method: Literal["basic", "pld"]
    answers: int
    epsilon: float
    delta: float


def compose_basic(epsilon: float, delta: float, count: int) -> Composition:
    """Add up what equal answers cost: (count epsilon, count delta).

    Args:
        epsilon: Privacy loss of one answer, in nats.
        delta: One answer's delta, in [0, 1).
        count: Answers, 1 or more.

    Returns:
        The sum. A delta of 1 or more promises nothing.

    Raises:
        ValueError: An argument is out of range.

    References:
        Dwork and Roth, 2014, theorem 3.16.
    """
    check_epsilon(epsilon)
    CHANCE.check("delta", delta)
    check_whole("count", count, 1)
    together = [float(count * read_decimal("price", price)) for price in (epsilon, delta)]
    return Composition("basic", count, *together)


def compose_exactly(mechanism: Mechanism, count: int, delta: float) -> Composition:
    """Return the smallest epsilon of equal answers together, never understated.

    For inputs that may depend on earlier answers. Gaussians are one with a larger sensitivity;
    others compose as privacy loss distributions, each as the worst one with its epsilon and delta.

    Args:
        mechanism: What gives the answers.
        count: Answers, 1 or more, fixed beforehand.
        delta: The delta at which epsilon is stated, in (0, 1).

    Returns:
        The composition; its epsilon is infinite where `delta` is less than the answers' own deltas
        leave.

    Raises:
        ValueError: An argument is out of range.

    References:
        Balle and Wang, ICML 2018; Sommer, Meiser and Mohammadi, PoPETs 2019; Kairouz, Oh and
        Viswanath, ICML 2015.
    """
    compose_basic(mechanism.epsilon, mechanism.delta, count)
    FRACTION.check("delta", delta)
    if not isinstance(mechanism, Gaussian):
        return compose_prices({(mechanism.epsilon, mechanism.delta): count}, delta)
    # So many Gaussians are one, of a sensitivity sqrt(count) times as large.
    shift = math.sqrt(count) * mechanism.sensitivity / mechanism.sigma
    return Composition("pld", count, least_epsilon(delta, shift), delta)


def compose_prices(prices: Mapping[tuple[float, float], int], delta: float) -> Composition:
    """Return the smallest epsilon of answers of several prices together, never understated.

    Every one counts as the worst mechanism of its price, composed as in `compose_exactly`.

    Args:
        prices: How many answers cost each (epsilon, delta).
        delta: The delta at which epsilon is stated, in (0, 1).

    Returns:
        The composition; its epsilon is infinite where `delta` is less than the answers' own deltas
        leave.

    Raises:
        ValueError: There is no answer, or a number is out of range.
    """
    # Imported here: a second, for SciPy's laws.
    parameters = import_optional("dp_accounting.pld.common").DifferentialPrivacyParameters
    losses_of = import_optional("dp_accounting.pld.privacy_loss_distribution")
    if not prices:
        raise ValueError("there are no answers; nothing was spent")
    FRACTION.check("delta", delta)
    sums = [compose_basic(*price, count) for price, count in prices.items()]
    (step, _), *further = prices  # of one price, losses are on its own grid
    if further:
        step = max(SMALLEST_STEP, math.fsum(part.epsilon for part in sums) / MAX_STEPS)
    losses = [
        losses_of.from_privacy_parameters(parameters(*price), step).self_compose(count)
        for price, count in prices.items()
    ]
    together = reduce(losses_of.PrivacyLossDistribution.compose, losses)
    epsilon = float(together.get_epsilon_for_delta(delta))
    return Composition("pld", sum(prices.values()), epsilon, delta)
