"""The Langevin step's constants, and the temperature they give, in closed form."""

import pytest

from fedcel.errors import SettingsError
from fedcel.posterior.langevin_constants import noise_variance, prior_pull, temperature_ratio
from fedcel.settings import PriorSettings


def test_consistent_prior_goes_back_the_stated_share_of_a_round() -> None:
    """(1 - eta kappa)^tau = 1 - r, whatever eta and tau."""
    for rate, steps in ((0.1, 1), (0.03, 20)):
        kappa = prior_pull(PriorSettings(mode="consistent", pull=0.25), rate, steps, 1000)
        assert (1 - rate * kappa) ** steps == pytest.approx(0.75)


def test_fixed_prior_is_the_gaussians_gradient_per_example() -> None:
    """1/(N s^2); none is 0; one that overshoots is refused with the remedy."""
    assert prior_pull(PriorSettings(mode="fixed", width=0.5), 0.1, 5, 100) == pytest.approx(0.04)
    assert prior_pull(PriorSettings(mode="none"), 0.1, 5, 100) == 0
    with pytest.raises(SettingsError, match=r"prior.width 0.01.*at least"):
        prior_pull(PriorSettings(mode="fixed", width=0.01), 1.0, 5, 100)


def test_a_width_that_is_a_deviation_pulls_far_less() -> None:
    """The noise's standard deviation as a variance: 1/(N sqrt(2 eta T/N))."""
    found = prior_pull(PriorSettings(mode="patent-code"), 0.02, 5, 100, temperature=1.0)
    assert found == pytest.approx(1 / (100 * 0.02))
    assert found < prior_pull(PriorSettings(mode="fixed", width=0.02), 0.02, 5, 100)


def test_the_noise_grows_as_the_share_falls() -> None:
    """2 eta T/(N w_k): halving w_k doubles the variance; shared noise knows no share."""
    base, _ = noise_variance(rate=0.1, temperature=2.0, total=100, share=1.0)
    assert base == pytest.approx(0.004)
    half, _ = noise_variance(rate=0.1, temperature=2.0, total=100, share=0.5)
    assert half == pytest.approx(2 * base)
    own, common = noise_variance(rate=0.1, temperature=2.0, total=100, share=0.5, common=0.6)
    assert (own, common) == pytest.approx((0.64 * half, 0.36 * base))


def test_moving_prior_is_compensated() -> None:
    """One step of q = 1: no cooling; else the variance is divided by (1 + q^tau)/(1 + q)."""
    assert temperature_ratio(0.1, 0.0, 20) == 1
    assert temperature_ratio(0.1, 2.0, 1) == 1
    ratio = temperature_ratio(0.1, 1.0, 20)
    assert ratio == pytest.approx((1 + 0.9**20) / 1.9)
    cooled, _ = noise_variance(rate=0.1, temperature=1.0, total=10, share=1.0, kappa=1.0, steps=20)
    assert cooled == pytest.approx(0.02 / ratio)
