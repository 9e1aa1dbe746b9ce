"""The chain against posteriors known in closed form, and wrong chains that must miss them."""

import dataclasses
import math

import pytest
import torch
from scipy.linalg import solve_discrete_lyapunov
from torch import Tensor

from fedcel.posterior.schedule import temperature_ratio
from tests.fedcel.posterior.truth import Federation, lines, settings

COUNTS = [5, 10, 20, 40, 80]
TOTAL = sum(COUNTS)
CHAINS = 2500
RATE = 0.05  # eta times the curvature, which is 1 in the Gaussian examples


def gaussian(rounds: int, steps: int, change: object = None, **more: object) -> Federation:
    """Return the mean of a Gaussian of unit variance, held by five clients of unequal size."""
    stream = torch.Generator().manual_seed(1)
    centres = torch.randn(len(COUNTS), generator=stream)
    targets = [
        c + torch.randn(n, 1, generator=stream) for c, n in zip(centres, COUNTS, strict=True)
    ]
    designs = [torch.ones(n, 1) for n in COUNTS]
    s = settings(rounds, steps, RATE, len(COUNTS), **more)
    regression_of_ones = lines(designs, targets, CHAINS, s)
    return dataclasses.replace(regression_of_ones, change=change) if change else regression_of_ones


def measured(federation: Federation, burn: int = 60, every: int = 4) -> tuple[float, float]:
    """Return the mean's error in posterior deviations, and the variance over the posterior's."""
    samples = federation.sample(burn, every)
    want = float(torch.cat([x[:, 0, 0, 1] for x, _ in federation.parts]).mean())
    sd = TOTAL**-0.5
    return float(samples.mean() - want) / sd, float((samples - want).square().mean()) / sd**2


@pytest.mark.parametrize(("steps", "rounds", "burn"), [(1, 240, 120), (5, 60, 20), (20, 16, 4)])
def test_conjugate_gaussian(steps: int, rounds: int, burn: int) -> None:
    """Mean within .03 deviations, variance 1/(1 - eta lambda/2) of the posterior's within 3 %."""
    error, variance = measured(gaussian(rounds, steps), burn, 2)
    assert abs(error) < 0.03
    assert variance == pytest.approx(1 / (1 - RATE / 2), rel=0.03)


@pytest.mark.parametrize("temperature", [0.1, 1.0, 4.0])
def test_temperature_scales_the_variance(temperature: float) -> None:
    """T times the posterior's variance, within 3 %."""
    _, variance = measured(gaussian(60, 5, temperature=temperature), 20, 2)
    assert variance == pytest.approx(temperature / (1 - RATE / 2), rel=0.03)


def stationary(beta: float, gain: float, steps: int = 2) -> float:
    """Return the exact variance of (w, m) over the posterior's, both moved by one mean delta."""
    q = (1 - RATE) ** steps
    push = 1 - beta
    m = [-push * (1 - q), beta]
    drift = torch.tensor([[1 + gain * m[0], gain * beta], m], dtype=torch.float64)
    noise = 2 * RATE * sum((1 - RATE) ** (2 * j) for j in range(steps)) / gain
    kick = torch.tensor([gain * push, push], dtype=torch.float64)
    sigma = solve_discrete_lyapunov(drift.numpy(), (noise * torch.outer(kick, kick)).numpy())
    return float(sigma[0, 0])


@pytest.mark.parametrize(
    ("beta", "gain", "want"),
    [(0.0, 1.0, 1.0256), (0.9, 1.0, 0.9782), (0.5, 12.0, 14.5 / 12), (0.9, 12.0, 12.08 / 12)],
)
def test_sliding_average(beta: float, gain: float, want: float) -> None:
    """Two steps a round: the Lyapunov solution, within 3 %; a gain needs small steps."""
    assert stationary(beta, gain) == pytest.approx(want, rel=0.004)
    federation = gaussian(160, 2, **{"strategy.momentum": beta, "strategy.gain": gain})
    _, variance = measured(federation, 80, 5)
    assert variance == pytest.approx(want, rel=0.03)


@pytest.mark.parametrize("pull", [0.2, 0.6])
def test_moving_prior(pull: float) -> None:
    """20 steps towards a prior centred on the received model: the exact variance, within 3 %."""
    steps = 20
    kappa = (1 - (1 - pull) ** (1 / steps)) / RATE
    q = 1 - RATE * (1 + kappa)
    a = q**steps + RATE * kappa * sum(q**j for j in range(steps))  # w after a round, from w
    heat = 1 / temperature_ratio(RATE, kappa, steps)
    exact = 2 * RATE * heat * sum(q ** (2 * j) for j in range(steps)) / (1 - a**2)
    more = {"prior.mode": "consistent", "prior.pull": pull}
    _, variance = measured(gaussian(24, steps, **more), 6, 2)
    assert variance == pytest.approx(exact, rel=0.03)
    assert variance > 1


def regression(
    rounds: int,
    steps: int,
    chains: int = 400,
    own_data: bool = False,
    parts: int = 8,
    **more: object,
) -> tuple[Federation, Tensor]:
    """Return 8 heterogeneous clients of 3 coefficients, and the true coefficients (C, 3)."""
    stream = torch.Generator().manual_seed(2)
    truth = torch.randn(chains if own_data else 1, 3, generator=stream)
    designs, targets = [], []
    for client in range(8):
        spread = 0.5 + torch.rand(3, generator=stream)
        design = torch.randn(10 + 4 * client, 3, generator=stream) * spread
        noise = torch.randn(len(design), len(truth), generator=stream)
        designs.append(design)
        targets.append(design @ truth.T + noise)
    if parts != 8:
        designs = list(torch.cat(designs).tensor_split(parts))
        targets = list(torch.cat(targets).tensor_split(parts))
    s = settings(rounds, steps, 0.1, len(designs), **more)
    return lines(designs, targets, chains, s), truth.expand(chains, 3)


def solution(federation: Federation, steps: int, rate: float = 0.1) -> tuple[Tensor, Tensor]:
    """Return the chain's exact stationary mean and covariance of the first chain's data.

    Means: w = sum p_k ((I - eta H_k)^tau w + (I - (I - eta H_k)^tau) w_k). Covariances:
    Sigma = M Sigma M' + Q, Q = sum w_k^2 2 eta/(N w_k) sum_{j < tau} (I - eta H_k)^{2j}.
    """
    total = sum(len(y) for _, y in federation.parts)
    eye = torch.eye(3, dtype=torch.float64)
    drift, push = torch.zeros_like(eye), torch.zeros(3, dtype=torch.float64)
    noise = torch.zeros_like(eye)
    for images, _ in federation.parts:
        x, y = images[:, 0, 0].double().split([3, 1], 1)
        p, step = len(x) / total, eye - rate * x.T @ x / len(x)
        round_drift = torch.linalg.matrix_power(step, steps)
        drift += p * round_drift
        push += p * (eye - round_drift) @ torch.linalg.lstsq(x, y).solution[:, 0]
        squares = sum(torch.linalg.matrix_power(step, 2 * j) for j in range(steps))
        noise += p * 2 * rate / total * squares
    mean = torch.linalg.solve(eye - drift, push)
    return mean, torch.from_numpy(solve_discrete_lyapunov(drift.numpy(), noise.numpy()))


def posterior(federation: Federation) -> tuple[Tensor, Tensor]:
    """Return the exact posterior's mean (3,) and deviations (3,), flat prior."""
    x, y = torch.cat([images[:, 0, 0] for images, _ in federation.parts]).double().split([3, 1], 1)
    covariance = torch.linalg.inv(x.T @ x)
    return (covariance @ x.T @ y)[:, 0], covariance.diagonal().sqrt()


def test_linear_regression_is_the_lyapunov_solution() -> None:
    """Eight heterogeneous clients, 5 local steps: mean within .03 sd, covariance within 2 %."""
    federation, _ = regression(120, 5, chains=1500)
    samples = federation.sample(20, 4).double().reshape(-1, 3)
    mean, covariance = solution(federation, 5)
    sd = covariance.diagonal().sqrt()
    assert ((samples.mean(0) - mean).abs() / sd).max() < 0.03
    whitened = torch.linalg.solve(torch.linalg.cholesky(covariance), (samples - mean).T)
    assert (whitened.cov() - torch.eye(3)).abs().max() < 0.02


def by_n_alone(federation: Federation) -> Federation:
    """Return the federation with the common mistake, whatever its clients."""
    counts = [len(y) for _, y in federation.parts]

    def wrong(noise: float, client: int) -> float:
        return noise * math.sqrt(counts[client] / sum(counts))

    return dataclasses.replace(federation, change=wrong)


def test_intervals_cover() -> None:
    """400 repeated data sets: 90 % intervals of the chains hold 87 to 93 % of the coefficients.

    With noise by N alone they are too narrow.
    """
    covered = []
    for change, rounds in ((lambda federation: federation, 320), (by_n_alone, 80)):
        more = {"own_data": True, "parts": 3}
        federation, truth = regression(rounds, 2, **more)
        samples = change(federation).sample(20, 3).view(-1, 400, 3)
        low, high = samples.quantile(torch.tensor([0.05, 0.95]), dim=0)
        covered.append(float(((low <= truth) & (truth <= high)).double().mean()))
    assert 0.87 < covered[0] < 0.93
    assert covered[1] < 0.8


def test_the_split_among_clients_changes_nothing() -> None:
    """1 and 8 clients of the same data: the posterior's mean and variance, each time."""
    for parts in (1, 8):
        federation, _ = regression(160, 1, chains=1500, parts=parts)
        exact, sd = posterior(federation)
        samples = federation.sample(60, 8).double().reshape(-1, 3)
        assert ((samples.mean(0) - exact).abs() / sd).max() < 0.03
        assert torch.allclose(samples.std(0), sd, rtol=0.05)  # eta lambda/4 of it are the step's
    few, _ = regression(100, 1, chains=300)
    narrow = by_n_alone(few).sample(60, 8).double().reshape(-1, 3).std(0)
    assert (narrow < 0.45 * sd).all()  # sum p_k^2 is .143
