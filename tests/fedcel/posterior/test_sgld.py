"""The Langevin step's constants, and the temperature they give, in closed form."""

import pytest
import torch

from fedcel.errors import SettingsError
from fedcel.posterior.sgld import noise_variance, prior_pull, temperature_ratio
from fedcel.settings_groups import Prior


def test_consistent_prior_goes_back_the_stated_share_of_a_round() -> None:
    """(1 - eta kappa)^tau = 1 - r, whatever eta and tau."""
    for rate, steps in ((0.1, 1), (0.03, 20)):
        kappa = prior_pull(Prior(mode="consistent", pull=0.25), rate, steps, 1000)
        assert (1 - rate * kappa) ** steps == pytest.approx(0.75)


def test_fixed_prior_is_the_gaussians_gradient_per_example() -> None:
    """1/(N s^2); none is 0; one that overshoots is refused with the remedy."""
    assert prior_pull(Prior(mode="fixed", width=0.5), 0.1, 5, 100) == pytest.approx(0.04)
    assert prior_pull(Prior(mode="none"), 0.1, 5, 100) == 0
    with pytest.raises(SettingsError, match=r"prior.width is 0.01.*at least"):
        prior_pull(Prior(mode="fixed", width=0.01), 1.0, 5, 100)


def test_the_noise_grows_as_the_share_falls() -> None:
    """2 eta T/(N w_k): halving w_k doubles the variance."""
    base = noise_variance(rate=0.1, temperature=2.0, total=100, share=1.0)
    assert base == pytest.approx(0.004)
    half = noise_variance(rate=0.1, temperature=2.0, total=100, share=0.5)
    assert half == pytest.approx(2 * base)


def test_moving_prior_is_compensated() -> None:
    """One step of q = 1: no cooling; else the variance is divided by (1 + q^tau)/(1 + q)."""
    assert temperature_ratio(0.1, 0.0, 20) == 1
    assert temperature_ratio(0.1, 2.0, 1) == 1
    ratio = temperature_ratio(0.1, 1.0, 20)
    assert ratio == pytest.approx((1 + 0.9**20) / 1.9)
    cooled = noise_variance(rate=0.1, temperature=1.0, total=10, share=1.0, kappa=1.0, steps=20)
    assert cooled == pytest.approx(0.02 / ratio)


def test_federated_chain_on_a_gaussian_has_the_posterior_variance() -> None:
    """Mean of a Gaussian, unequal holders: variance 1/(1 - eta lambda/2) of the posterior's.

    4 000 chains at once, tau 5 steps a round; noise by N instead of N w_k gives sum p_k^2 of it.
    """
    counts, steps, rate, chains = [5, 10, 20, 40, 80], 5, 0.05, 4000
    total = sum(counts)
    stream = torch.Generator().manual_seed(5)
    centres = [torch.randn(1, generator=stream).double() for _ in counts]
    shares = [count / total for count in counts]
    want = sum(p * c for p, c in zip(shares, centres, strict=True))

    def chain(noise_shares: list[float]) -> torch.Tensor:
        w = torch.zeros(chains, dtype=torch.float64)
        for _ in range(60):
            delta = torch.zeros_like(w)
            for p, centre, share in zip(shares, centres, noise_shares, strict=True):
                variance = noise_variance(rate=rate, temperature=1.0, total=total, share=share)
                own = w.clone()
                for _ in range(steps):
                    xi = torch.randn(chains, generator=stream, dtype=torch.float64)
                    own = own - rate * (own - centre) + variance**0.5 * xi
                delta += p * (own - w)
            w = w + delta
        return (w - want) * total**0.5  # in units of the posterior's deviation

    exact = chain(shares)
    assert exact.var().item() == pytest.approx(1 / (1 - rate / 2), rel=0.08)
    assert abs(exact.mean().item()) < 0.08
    wrong = chain([1.0] * len(counts)).var().item()
    assert wrong == pytest.approx(sum(p**2 for p in shares) / (1 - rate / 2), rel=0.08)
