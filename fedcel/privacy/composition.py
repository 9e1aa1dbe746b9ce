"""The exact privacy of many answers together, by dp-accounting.

It protects the inputs of all the queries against whoever reads all the answers. The ledger books
the sum of their prices, which holds without a number of answers fixed beforehand.
"""

import math
from collections.abc import Mapping
from functools import reduce

from fedcel.extras import import_optional
from fedcel.privacy.epsilon_range import check_epsilon
from fedcel.ranges import CHANCE, FRACTION, check_whole

SMALLEST_STEP = 1e-4
"""Step of the grid of losses of several prices, in nats; coarser where the losses reach far."""
MAX_STEPS = 100_000


def compose_prices(prices: Mapping[tuple[float, float], int], delta: float) -> float:
    """Return the smallest epsilon of many answers together, never understated.

    For inputs that may depend on earlier answers, and numbers of answers fixed beforehand. Each
    answer counts as the worst mechanism of its price; they compose as privacy loss distributions.

    Args:
        prices: Number of answers at each price (epsilon, delta).
        delta: The delta at which epsilon is stated, in (0, 1).

    Returns:
        Epsilon in nats; infinite where `delta` is less than the answers' own deltas leave.

    Raises:
        ValueError: There is no answer, or a number is out of range.

    References:
        Sommer, Meiser and Mohammadi, PoPETs 2019; Kairouz, Oh and Viswanath, ICML 2015.
    """
    # Imported here: a second, for SciPy's laws.
    parameters = import_optional("dp_accounting.pld.common").DifferentialPrivacyParameters
    losses_of = import_optional("dp_accounting.pld.privacy_loss_distribution")
    if not prices:
        raise ValueError("there are no answers; nothing was spent")
    FRACTION.check("delta", delta)
    for (epsilon, price_delta), count in prices.items():
        check_epsilon(epsilon)
        CHANCE.check("delta", price_delta)
        check_whole("count", count, 1)
    (step, _), *further = prices  # of one price, losses are on its own grid
    if further:
        total = math.fsum(epsilon * count for (epsilon, _), count in prices.items())
        step = max(SMALLEST_STEP, total / MAX_STEPS)
    losses = [
        losses_of.from_privacy_parameters(parameters(*price), step).self_compose(count)
        for price, count in prices.items()
    ]
    together = reduce(losses_of.PrivacyLossDistribution.compose, losses)
    return float(together.get_epsilon_for_delta(delta))
