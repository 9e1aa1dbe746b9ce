"""The bound on what an update tells against a chain whose law is known in closed form."""

import math

import pytest
import torch

from fedcel.data import Images
from fedcel.posterior import (
    ClientByClient,
    Langevin,
    LangevinContext,
    RoundPlan,
    StackedSampler,
    StepNoise,
)
from fedcel.posterior.langevin_step import step_information
from fedcel.settings import LocalSettings
from fedcel.torch_state import make_generator
from tests.fedcel.posterior.truth import lines, settings
from tests.fedcel.train_one import train_one

RATE, STEPS, NOISE, PULL = 0.1, 8, 0.05, 0.7
CHAINS = 20_000
PLAN = RoundPlan(RATE, PULL, 0.0, NOISE**2, False, 1.0)


def measure_bound(target: float, plan: RoundPlan = PLAN) -> float:
    """Return the metric of a client's round, a chain: f = (w - target)^2 / 2, received 0."""
    federation = lines(
        [torch.ones(5, 1)], [torch.full((5, 1), target)], CHAINS, settings(1, STEPS, RATE, 1)
    )
    update = train_one(
        federation.flat,
        torch.zeros(CHAINS),
        Images(*federation.parts[0]),
        plan=plan,
        local=LocalSettings(steps=STEPS, batch_size=5),
        streams=lambda purpose: make_generator(5, purpose),
    )
    return update.metrics["update-information"] / CHAINS


def expect_bound(square: float) -> float:
    """Return the mean of sum_t eta^2 (w_t - x)^2 / (2 v) for E x^2 = `square`.

    w_t is Gaussian: w <- q w + eta x + noise, q = 1 - eta (1 + kappa).
    """
    q = 1 - RATE * (1 + PULL)
    response, variance, total = 0.0, 0.0, 0.0
    for _ in range(STEPS):
        total += (response - 1) ** 2 * square + variance
        response, variance = q * response + RATE, q**2 * variance + NOISE**2
    return total * RATE**2 / (2 * NOISE**2)


def information(square: float) -> float:
    """Return I(update; x) in nats for x of N(0, square): a Gaussian channel."""
    q = 1 - RATE * (1 + PULL)
    response = RATE * sum(q**t for t in range(STEPS))
    variance = NOISE**2 * sum(q ** (2 * t) for t in range(STEPS))
    return 0.5 * math.log1p(response**2 * square / variance)


@pytest.mark.parametrize("target", [0.0, 0.3, 2.0])
def test_the_metric_is_the_divergence_of_both_chains(target: float) -> None:
    """Its mean over the chains, within 1 %."""
    assert measure_bound(target) == pytest.approx(expect_bound(target**2), rel=0.01)


@pytest.mark.parametrize("deviation", [0.02, 0.1, 1.0])
def test_it_bounds_the_information_in_the_update(deviation: float) -> None:
    """The mean over Gaussian data is above the exact information, whatever the data's spread."""
    assert information(deviation**2) < expect_bound(deviation**2)


def test_a_moving_prior_barely_helps() -> None:
    """Of a constant gradient the last state's divergence is (1 - r/2) of the path's, r small.

    KL = (eta g)^2 (sum q^t)^2 / (2 v sum q^2t), and compensated noise is larger by (1 + q)/(1 +
    q^steps): together (1 - q^steps)/(1 - q) steps' worth.
    """
    steps, share = 20, 0.1
    q = (1 - share) ** (1 / steps)
    variance = sum(q ** (2 * t) for t in range(steps)) * (1 + q) / (1 + q**steps)
    kept = sum(q**t for t in range(steps)) ** 2 / variance / steps
    assert kept == pytest.approx(share / (1 - q) / steps)
    assert kept == pytest.approx(1 - share / 2, abs=0.01)


def test_several_clients() -> None:
    """|eta g|^2 / (2 v) by hand, each client with its own noise."""
    gradient = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    actual = step_information(gradient, 0.5, [1.0, 2.0])
    torch.testing.assert_close(actual, torch.tensor([0.125 * 5, 0.125 * 25 / 4]).double())
    assert step_information(gradient[:1], 0.5, [1.0]).item() == pytest.approx(0.125 * 5)


def has_bound(plan: RoundPlan, deviations: list[float], sampler: StackedSampler) -> bool:
    """Return whether a step of clients of two parameters says anything."""
    streams = [torch.Generator().manual_seed(k) for k in range(len(deviations))]
    noise = StepNoise(deviations, streams, torch.empty(2))
    context = LangevinContext(plan, slice(None), torch.zeros(2), noise, sampler)
    return context.bounds_information


def test_what_has_no_bound() -> None:
    """A client without noise, a user's sampler: nothing is said."""
    own = ClientByClient(Langevin())
    assert has_bound(PLAN, [NOISE, NOISE], Langevin())
    assert not has_bound(PLAN, [NOISE, 0.0], Langevin())
    assert not has_bound(PLAN, [NOISE, NOISE], own)
    with pytest.raises(KeyError, match="update-information"):
        measure_bound(0.3, PLAN._replace(noise_variance=0.0))
