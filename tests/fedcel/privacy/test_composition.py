"""Many answers together: sums by hand, exact curves against closed forms."""

from math import comb, exp, inf, nan

import pytest
from scipy.optimize import brentq

from fedcel.privacy import (
    Gaussian,
    LabelOnly,
    Laplace,
    compose_exactly,
    compose_prices,
)
from fedcel.privacy.composition import Composition, compose_basic
from fedcel.privacy.gaussian_calibration import smallest_delta

LAPLACE = Laplace(0.5, 10, clip_kind="l1", clip=1.0, sensitivity=2.0)
GAUSSIAN = Gaussian(0.5, 10, delta=1e-6, clip_kind="l1", clip=1.0, sensitivity=2.0)


def worst(epsilon: float, total: float, count: int) -> float:
    """Return delta at `total` of so many binary randomised responses, a sum over their truths."""
    p = exp(epsilon) / (1 + exp(epsilon))
    return sum(
        comb(count, k)
        * (p**k * (1 - p) ** (count - k) - exp(total) * p ** (count - k) * (1 - p) ** k)
        for k in range(count + 1)
        if (2 * k - count) * epsilon > total
    )


def test_the_sum_by_hand() -> None:
    """96 answers of (0.5, 2^-20)."""
    assert compose_basic(0.5, 2**-20, 96) == Composition("basic", 96, 48.0, 96 * 2**-20)


@pytest.mark.parametrize("count", [1, 7, 100])
@pytest.mark.parametrize("mechanism", [LAPLACE, LabelOnly(0.5, 10)], ids=lambda m: m.name)
def test_pure_answers_are_the_worst_of_their_epsilon(
    mechanism: Laplace | LabelOnly, count: int
) -> None:
    """The delta that binomials give at the epsilon found is the delta asked for."""
    composition = compose_exactly(mechanism, count, 1e-5)
    assert composition.method == "pld"
    assert worst(0.5, composition.epsilon, count) == pytest.approx(1e-5, rel=1e-6)
    assert composition.epsilon < compose_basic(0.5, 0.0, count).epsilon


@pytest.mark.parametrize("count", [1, 10, 1000])
def test_gaussian_answers_are_one_gaussian(count: int) -> None:
    """Of sqrt(count) times the sensitivity; the grid never understates, by less than 1 %."""
    composition = compose_exactly(GAUSSIAN, count, 1e-6)
    bound, sigma = 2.0 * count**0.5, GAUSSIAN.sigma
    exact = brentq(lambda e: smallest_delta(e, sigma, bound) - 1e-6, 1e-3, 1e3, xtol=1e-12)
    assert exact <= composition.epsilon <= 1.01 * exact
    if count == 1:
        assert composition.epsilon == pytest.approx(0.5, rel=1e-2)


def test_one_price_together_is_the_exact_curve_of_that_mechanism() -> None:
    """Nine answers of .5, and of .5 with a delta each."""
    composition = compose_prices({(0.5, 0.0): 9}, 1e-5)
    assert composition == compose_exactly(LAPLACE, 9, 1e-5)
    with_deltas = compose_prices({(0.5, 1e-7): 9}, 1e-5)
    assert composition.epsilon < with_deltas.epsilon < 4.5


def test_prices_add_up_and_are_never_understated() -> None:
    """Two prices lie between one alone and the sum; binomials of both agree within a step."""
    composition = compose_prices({(0.5, 0.0): 4, (1.0, 0.0): 4}, 1e-5)
    assert composition.answers == 8 and composition.method == "pld"
    assert compose_prices({(1.0, 0.0): 4}, 1e-5).epsilon < composition.epsilon <= 6.0 + 1e-3
    split = compose_prices({(0.5, 0.0): 40, (0.5000001, 0.0): 40}, 1e-5)
    assert split.epsilon == pytest.approx(compose_exactly(LAPLACE, 80, 1e-5).epsilon, rel=2e-3)
    assert split.epsilon >= compose_exactly(LAPLACE, 80, 1e-5).epsilon
    assert compose_prices({(1.0, 0.5): 1}, 1e-5).epsilon == inf


@pytest.mark.parametrize(("prices", "delta"), [({}, 0.1), ({(1.0, 0.0): 1}, 0.0)])
def test_nothing_together_is_refused(prices: dict[tuple[float, float], int], delta: float) -> None:
    """No answers, no delta."""
    with pytest.raises(ValueError, match="answers|delta"):
        compose_prices(prices, delta)


def test_a_delta_below_the_mechanism_s_own_promises_nothing() -> None:
    """A user's own mechanism with delta .01 has no epsilon at a delta of .001."""

    class Own:
        """Says what it costs."""

        name, epsilon, delta, unit, protects = "own", 1.0, 0.01, "logits", "all."
        answer = LAPLACE.answer

    assert compose_exactly(Own(), 1, 1e-3).epsilon == inf
    assert compose_exactly(Own(), 1, 0.011).epsilon == pytest.approx(1.0, abs=0.01)


def test_impossible_numbers_are_refused() -> None:
    """Each by its name."""
    for bad in (0.0, -1.0, inf, nan):
        with pytest.raises(ValueError, match="epsilon is"):
            compose_basic(bad, 0.0, 1)
    for bad in (-0.1, 1.0, nan):
        with pytest.raises(ValueError, match="delta is"):
            compose_basic(1.0, bad, 1)
    for bad in (0, "3", 2.5):
        with pytest.raises(ValueError, match=f"count is {bad!r}, must be 1 or more"):
            compose_basic(1.0, 0.0, bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"delta is 0\.0, must be above 0"):
        compose_exactly(LAPLACE, 1, 0.0)
