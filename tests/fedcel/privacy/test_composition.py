"""Many answers together: exact curves against closed forms."""

from math import comb, exp, inf, nan

import pytest

from fedcel.privacy import compose_prices


def worst(epsilon: float, total: float, count: int) -> float:
    """Return delta at `total` of so many binary randomised responses, a sum over their truths."""
    p = exp(epsilon) / (1 + exp(epsilon))
    return sum(
        comb(count, k)
        * (p**k * (1 - p) ** (count - k) - exp(total) * p ** (count - k) * (1 - p) ** k)
        for k in range(count + 1)
        if (2 * k - count) * epsilon > total
    )


@pytest.mark.parametrize("count", [1, 7, 100])
def test_equal_answers_are_the_worst_of_their_epsilon(count: int) -> None:
    """The delta that binomials give at the epsilon found is the delta asked for."""
    epsilon = compose_prices({(0.5, 0.0): count}, 1e-5)
    assert worst(0.5, epsilon, count) == pytest.approx(1e-5, rel=1e-6)
    assert epsilon < 0.5 * count
    assert epsilon < compose_prices({(0.5, 1e-8): count}, 1e-5) < 0.5 * count


def test_prices_add_up_and_are_never_understated() -> None:
    """Two prices lie between one by itself and the sum; binomials agree within a step."""
    epsilon = compose_prices({(0.5, 0.0): 4, (1.0, 0.0): 4}, 1e-5)
    assert compose_prices({(1.0, 0.0): 4}, 1e-5) < epsilon <= 6.0 + 1e-3
    split = compose_prices({(0.5, 0.0): 40, (0.5000001, 0.0): 40}, 1e-5)
    same = compose_prices({(0.5, 0.0): 80}, 1e-5)
    assert same <= split == pytest.approx(same, rel=2e-3)


def test_a_delta_below_the_answers_own_promises_nothing() -> None:
    """Answers of delta .01 have no epsilon at a delta of .001."""
    assert compose_prices({(1.0, 0.01): 1}, 1e-3) == inf
    assert compose_prices({(1.0, 0.01): 1}, 0.011) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    ("prices", "delta", "message"),
    [
        ({}, 0.1, "no answers"),
        ({(1.0, 0.0): 1}, 0.0, r"delta is 0\.0, must be above 0"),
        *(({(bad, 0.0): 1}, 0.1, "epsilon is") for bad in (0.0, -1.0, inf, nan)),
        *(({(1.0, bad): 1}, 0.1, "delta is") for bad in (-0.1, 1.0, nan)),
        *(({(1.0, 0.0): bad}, 0.1, "count is .*, must be 1 or more") for bad in (0, "3", 2.5)),
    ],
)
def test_impossible_numbers_are_refused(
    prices: dict[tuple[float, float], int], delta: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        compose_prices(prices, delta)
