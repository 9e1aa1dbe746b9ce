"""Updates under noise: how long, how noisy, and what that costs."""

import math

import pytest
import torch
from scipy.special import log_ndtr
from scipy.stats import kstest

from fedcel.privacy.update_noise import NoisyRound, account_updates, add_update_noise, clip_update


def delta_of(shift: float, epsilon: float) -> float:
    """Return the delta of one Gaussian at epsilon: Balle and Wang, ICML 2018, theorem 8."""
    first = math.exp(log_ndtr(shift / 2 - epsilon / shift))
    return first - math.exp(epsilon + log_ndtr(-shift / 2 - epsilon / shift))


@pytest.mark.parametrize("length", [0.1, 1.0, 30.0])
def test_no_update_is_longer_than_the_clip(length: float) -> None:
    """A short one is unchanged, a long one keeps its direction."""
    delta = torch.randn(5000, generator=torch.Generator().manual_seed(1))
    delta *= length / delta.norm()
    result = clip_update(delta, 1.0)
    assert float(result.norm()) == pytest.approx(min(length, 1.0), rel=1e-6)
    assert float(result.norm()) <= 1.0 + 1e-12
    torch.testing.assert_close(result / result.norm(), delta.double() / delta.double().norm())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_update_that_is_not_finite_is_as_good_as_none(bad: float) -> None:
    """What is sent then is noise, and the holder is warned."""
    with pytest.warns(UserWarning, match="counts as 0"):
        result = add_update_noise(torch.tensor([1.0, bad, 2.0]), 1.0, 0.5)
    assert result.isfinite().all()
    with pytest.warns(UserWarning, match="counts as 0"):
        assert not clip_update(torch.tensor([1.0, bad, 2.0]), 1.0).any()


@pytest.mark.parametrize("noise", [1e-9, 1e-4, 1e6])
def test_any_noise_has_a_finite_price(noise: float) -> None:
    """However much it is."""
    result = account_updates(noise, [NoisyRound([0], 1.0)] * 1000, 1e-15)
    assert 0 <= result.server < math.inf


def test_the_noise_is_gaussian_fresh_and_as_large_as_said() -> None:
    """Of sigma noise times clip, for any update; two of the same differ."""
    delta = torch.zeros(4000)
    delta[0] = 100.0
    first, second = (add_update_noise(delta, 2.0, 0.75) for _ in range(2))
    assert first.dtype == delta.dtype
    assert not torch.equal(first, second)
    middle = torch.zeros(4000)
    middle[0] = 2.0
    for result in (first, second):
        assert kstest((result - middle).numpy() / 1.5, "norm").pvalue > 1e-6
    apart = (first - second) / (1.5 * math.sqrt(2))
    assert float(apart.std()) == pytest.approx(1.0, abs=0.06)


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (4.0, 30), (20.0, 100)])
def test_epsilon_is_that_of_one_gaussian(noise: float, rounds: int) -> None:
    """All rounds together are one Gaussian, sqrt(rounds) 2/noise apart; at most .2 % above it."""
    alone = NoisyRound([0, 1], 1.0)
    result = account_updates(noise, [alone] * rounds, 1e-5)
    shift = 2 * math.sqrt(rounds) / noise
    assert result.server == result.models
    assert result.rounds == rounds
    assert delta_of(shift, result.server) <= 1e-5
    assert delta_of(shift, 0.998 * result.server) > 1e-5


def test_models_tell_less_the_more_holders_there_are() -> None:
    """Of n equal ones as one update under sqrt(n) times the noise; who was drawn less, less."""
    equal = NoisyRound(range(100), 0.1)
    assert account_updates(2.0, [equal] * 5, 1e-6).models == pytest.approx(
        account_updates(20.0, [NoisyRound([0], 1.0)] * 5, 1e-6).server
    )
    drawn = [NoisyRound([0, 1], 1.0), NoisyRound([0, 2], 0.5), NoisyRound([1, 2], 0.5)]
    result = account_updates(3.0, drawn, 1e-6)
    assert result.rounds == 2
    # holder 1 as holder 0: 1 + 1/4 of a round, holder 2 a half
    assert result.models == pytest.approx(
        account_updates(3.0, [NoisyRound([0], 1.0), NoisyRound([0], 0.5)], 1e-6).models
    )


@pytest.mark.parametrize(
    ("noise", "rounds", "delta", "message"),
    [
        (0.0, [NoisyRound([0], 1.0)], 1e-6, "noise is 0.0, must be finite and above 0"),
        (1.0, [], 1e-6, "no holder took part"),
        (1.0, [NoisyRound([0], 1.0)], 0.0, "delta is 0.0, must be above 0 and below 1"),
    ],
)
def test_nothing_is_claimed_for_nothing(
    noise: float, rounds: list[NoisyRound], delta: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        account_updates(noise, rounds, delta)
