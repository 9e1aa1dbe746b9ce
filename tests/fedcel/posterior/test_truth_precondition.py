"""A step size for each parameter, with a prior at 0 and one that moves: the target stays."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedcel.federation import server_state
from fedcel.posterior.round_plan import RoundPlan, plan_round
from tests.fedcel.posterior.truth import Federation, installed, lines, looped, settings

COUNTS = [10, 20, 30, 40]
TOTAL, RATE, STEPS, SCALE = sum(COUNTS), 0.03, 4, 0.2
CURVATURE = torch.tensor([0.4, 1.6]).double()  # of every client's mean potential
MORE = {
    "local.precondition": "rms",
    "prior.scale": SCALE,
    "prior.mode": "consistent",
    "prior.pull": 0.3,
    "chain.burn-in": 0.1,
    "chain.heat": 1.0,
}


def federation() -> Federation:
    """Return four clients of two coefficients that do not touch each other: H is diagonal.

    A client's coefficients are its own; far from 0, so that the steep one moves the model most.
    """
    stream = torch.Generator().manual_seed(1)
    designs = [(2 * CURVATURE).sqrt().float().diag().repeat(n // 2, 1) for n in COUNTS]
    truth = [torch.tensor([[1.0], [3.0]]) + torch.randn(2, 1, generator=stream) for _ in COUNTS]
    targets = [
        x @ w + torch.randn(len(x), 1, generator=stream)
        for x, w in zip(designs, truth, strict=True)
    ]
    return lines(designs, targets, 2000, settings(150, STEPS, RATE, len(COUNTS), **MORE))


def posterior(clients: Federation) -> tuple[Tensor, Tensor]:
    """Return mean and variances (2,) of the posterior with the prior N(0, s0^2)."""
    x, y = torch.cat([images[:, 0, 0] for images, _ in clients.parts]).double().split([2, 1], 1)
    precision = TOTAL * CURVATURE + SCALE**-2
    return (x.T @ y)[:, 0] / precision, 1 / precision


def exact(clients: Federation, scale: Tensor) -> Tensor:
    """Return the exact stationary variances (C, 2) of chains with step sizes eta G, `scale` G.

    A round is w <- q^tau w + eta G kappa (1 + .. + q^(tau-1)) w + noise around the posterior's
    mean, q = 1 - eta G (lambda + decay + kappa), the noise that of temperature 1 at step eta G,
    over what the moving prior cools it by.
    """
    plan = plan_round(clients.settings, clients.settings.rounds, 1.0, TOTAL)
    eta = RATE * scale.double()
    q = 1 - eta * (CURVATURE + plan.decay + plan.pull)
    drift = q**STEPS + eta * plan.pull * sum(q**j for j in range(STEPS))
    towards = 1 - eta * plan.pull
    noise = 2 * eta / TOTAL * (1 + towards) / (1 + towards**STEPS)
    return noise * sum(q ** (2 * j) for j in range(STEPS)) / (1 - drift**2)


def measured(clients: Federation, folder: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean's error (2,) in deviations, the variance over the exact one, and over T = 1.

    The step sizes have to differ, and to stay when burn-in ends.
    """
    states = list(looped(clients, folder))
    scales = [server_state.compute_preconditioner(state).view(-1, 2) for state in states]
    end = clients.settings.rounds // 10
    assert all(torch.equal(scale, scales[-1]) for scale in scales[end:])
    assert (scales[-1][:, 0] / scales[-1][:, 1]).min() > 1.5
    mean, variance = posterior(clients)
    off = torch.stack([state.model.view(-1, 2) for state in states[5 * end :: 3]]).double() - mean
    want = exact(clients, scales[-1])
    ratio = (off.square() / want).mean((0, 1))
    return (off / want.sqrt()).mean((0, 1)), ratio, (want / variance).mean(0)


def test_step_sizes_leave_the_posterior(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean within .03 sd, variance within 3 % of the exact one, which is the posterior's to 2 %."""
    clients = federation()
    installed(clients, monkeypatch)
    error, ratio, heat = measured(clients, tmp_path)
    assert error.abs().max() < 0.03
    assert (ratio - 1).abs().max() < 0.03
    assert (heat - 1).abs().max() < 0.02


def test_noise_must_be_scaled_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of eta G with the noise of eta: too cold where G is large, too hot where small."""
    monkeypatch.setattr(RoundPlan, "noise_scale", lambda plan, scale: torch.ones_like(scale))
    clients = federation()
    installed(clients, monkeypatch)
    _, ratio, _ = measured(clients, tmp_path)
    assert ratio[0] < 0.8
    assert ratio[1] > 1.5
