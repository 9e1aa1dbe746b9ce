"""The constants of a round, and the temperature they give, in closed form."""

import pytest

from fedcel.errors import SettingsError
from fedcel.posterior.schedule import RoundOrder, RoundPlan, noise_variance, temperature_ratio
from fedcel.run_parts import build_schedule
from fedcel.settings import (
    ConsistentPrior,
    FixedPrior,
    NoPrior,
    Settings,
    burn_in_rounds,
    parse_settings,
)

S = parse_settings(
    {
        "rounds": 100,
        "cel.kind": "plain",
        "cel.weight": 2.0,
        "cel.warm-up": 10,
        "cel.ramp": 0.6,
        "chain.burn-in": 0.8,
        "local.rate": 1.0,
        "local.rate-end": 0.1,
    }
)


def step_size(settings: Settings, number: int) -> float:
    return settings.local.step_size(number, build_schedule(settings).burn_in)


def test_rate_falls_by_a_cosine_until_burn_in_ends() -> None:
    """Its first value, its last, and constant while sampling."""
    assert step_size(S, 1) == 1.0
    assert step_size(S, 80) == pytest.approx(0.1)
    assert step_size(S, 81) == step_size(S, 100) == pytest.approx(0.1)
    assert step_size(S, 30) > step_size(S, 31)


def test_heat_and_freeze_begin_with_sampling() -> None:
    """Burn-in is annealed without noise by default; then T = 1 on a frozen encoder."""
    before, after = (
        build_schedule(S).plan(RoundOrder(80, 1000)),
        build_schedule(S).plan(RoundOrder(81, 1000)),
    )
    assert (before.noise_variance, before.is_encoder_frozen, before.temperature) == (0, False, 0)
    assert after.noise_variance > 0
    assert after.is_encoder_frozen
    assert after.temperature == 1
    assert before.weights == {"cel": 2.0} and not after.weights
    assert burn_in_rounds(S) == 80
    assert burn_in_rounds(parse_settings({"rounds": 100, "chain.burn-in": 0.55})) == 55


@pytest.mark.parametrize("burn_in", [0, 1])
def test_a_burn_in_too_short_to_fall_in_samples_at_the_last_rate(burn_in: int) -> None:
    """Ten rounds: whatever comes after burn-in has `rate-end` of the first step size."""
    s = parse_settings(
        {
            "rounds": 10,
            "chain.burn-in": burn_in / 10,
            "chain.scope": "full",
            "local.rate": 1.0,
            "local.rate-end": 0.05,
        }
    )
    rates = [step_size(s, number) for number in range(1, 11)]
    assert rates == pytest.approx([1.0] * burn_in + [0.05] * (10 - burn_in))


def test_steps_that_would_overshoot_are_refused() -> None:
    """The prior at 0 and the pull of FedProx count, too."""
    with pytest.raises(SettingsError, match="would overshoot"):
        build_schedule(parse_settings({"prior.scale": 0.01})).plan(RoundOrder(1, 1000))
    with pytest.raises(SettingsError, match="would overshoot"):
        build_schedule(parse_settings({"prior.mode": "none"})).plan(
            RoundOrder(1, 1000, proximal=2.0)
        )


def test_consistent_prior_goes_back_the_stated_share_of_a_round() -> None:
    """(1 - eta kappa)^tau = 1 - r, whatever eta and tau."""
    for rate, steps in ((0.1, 1), (0.03, 20)):
        kappa = ConsistentPrior(share=0.25).pull(rate, steps, 1000)
        assert (1 - rate * kappa) ** steps == pytest.approx(0.75)


def test_fixed_prior_is_the_gaussians_gradient_per_example() -> None:
    """1/(N s^2); none is 0; one that overshoots is refused with the remedy."""
    assert FixedPrior(width=0.5).pull(0.1, 5, 100) == pytest.approx(0.04)
    assert NoPrior().pull(0.1, 5, 100) == 0
    with pytest.raises(SettingsError, match=r"prior.width 0.01.*at least"):
        FixedPrior(width=0.01).pull(1.0, 5, 100)


def test_the_noise_grows_as_the_share_falls() -> None:
    """2 eta T/(N w_k): halving w_k doubles the variance."""
    base = noise_variance(0.1, 2.0, 100)
    assert base == pytest.approx(0.004)
    plan = RoundPlan(0.1, 0.0, 0.0, base, False, 2.0)
    assert plan.noise(0.5) ** 2 == pytest.approx(2 * base)


def test_moving_prior_is_compensated() -> None:
    """One step of q = 1: no cooling; else the variance is divided by (1 + q^tau)/(1 + q)."""
    assert temperature_ratio(0.1, 0.0, 20) == 1
    assert temperature_ratio(0.1, 2.0, 1) == 1
    ratio = temperature_ratio(0.1, 1.0, 20)
    assert ratio == pytest.approx((1 + 0.9**20) / 1.9)
    cooled = noise_variance(0.1, 1.0, 10, kappa=1.0, steps=20)
    assert cooled == pytest.approx(0.02 / ratio)
