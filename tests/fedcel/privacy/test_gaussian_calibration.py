"""The Gaussian calibration against its closed form, another library, and the classical bound."""

from math import inf, nan
from random import Random

import pytest
from dp_accounting.gaussian_mechanism import get_sigma_gaussian
from mpmath import exp, mpf, ncdf, workdps
from scipy.stats import norm

from fedcel.privacy.gaussian_calibration import (
    SLACK,
    calibrate_sigma,
    least_epsilon,
    smallest_delta,
)


def exact_delta(epsilon: float, sigma: float, sensitivity: float) -> mpf:
    """Compute theorem 8 with 80 digits."""
    ratio = mpf(sensitivity) / mpf(sigma)
    shift, tail = ratio / 2, mpf(epsilon) / ratio
    return ncdf(shift - tail) - exp(mpf(epsilon)) * ncdf(-shift - tail)


def test_the_delta_never_exceeds_the_asked() -> None:
    """In 300 cases, with 80 digits: calibrated by sigma, by epsilon, and as stated."""
    rng = Random(5)
    with workdps(80):
        for case in range(300):
            epsilon = 10 ** rng.uniform(-6, 12.6 if case % 2 else 3)
            delta = 10 ** (rng.uniform(-300, -12) if case % 3 else rng.uniform(-12, -0.001))
            bound = 10 ** rng.uniform(-3, 3)
            sigma = calibrate_sigma(epsilon, delta, bound)
            assert exact_delta(epsilon, sigma, bound) <= delta
            least = exact_delta(epsilon, sigma / SLACK**2, bound)
            assert least >= delta * 0.99
            assert smallest_delta(epsilon, sigma, bound) >= exact_delta(epsilon, sigma, bound)
            shift = 10 ** rng.uniform(-6, 5)
            assert exact_delta(least_epsilon(delta, shift), 1.0, shift) <= delta


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.3])
def test_against_another_library(epsilon: float, delta: float) -> None:
    """The same sigma for sensitivity 1, scaled by the sensitivity."""
    expected = get_sigma_gaussian(epsilon, delta)
    assert calibrate_sigma(epsilon, delta, 1.0) == pytest.approx(expected, rel=1e-4)
    assert calibrate_sigma(epsilon, delta, 7.0) == pytest.approx(7 * expected, rel=1e-4)


def test_delta_by_the_normal_tables() -> None:
    """Phi(.5 - 1) - e Phi(-.5 - 1) at sigma 1, sensitivity 1, epsilon 1."""
    expected = norm.cdf(-0.5) - 2.718281828459045 * norm.cdf(-1.5)
    assert smallest_delta(1.0, 1.0, 1.0) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("bad", [0.0, -1.0, nan, inf])
def test_impossible_numbers_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="epsilon is"):
        calibrate_sigma(bad, 1e-6, 1.0)
    with pytest.raises(ValueError, match="sensitivity is"):
        calibrate_sigma(1.0, 1e-6, bad)
    with pytest.raises(ValueError, match="delta is"):
        calibrate_sigma(1.0, bad, 1.0)
    with pytest.raises(ValueError, match="delta is"):
        calibrate_sigma(1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="too small"):
        calibrate_sigma(1e-300, 1e-9, 1e300)
