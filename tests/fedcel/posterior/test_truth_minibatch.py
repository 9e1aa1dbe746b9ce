"""What minibatches add to the heat, in closed form: batches are cut from shuffled epochs.

The mean of a Gaussian, so that all batches have the curvature 1 and only their means differ. Within
a pass over the images two batches are negatively correlated, across passes they are independent.
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.fedcel.posterior.truth import Federation, lines, looped, settings

COUNTS, CHAINS = [20, 30, 40, 60], 1200
TOTAL = sum(COUNTS)


def federation(number: int, steps: int, rate: float, batch: int) -> Federation:
    """Return four clients; each chain has the same images in an order of its own.

    All chains draw the same places of their batches; so they draw different images.
    """
    stream, second_stream = (torch.Generator().manual_seed(seed) for seed in (1, 2))
    targets = []
    for n in COUNTS:
        values = torch.randn(1, generator=stream) + torch.randn(n, generator=stream)
        orders = torch.rand(CHAINS, n, generator=second_stream).argsort(1)
        targets.append(values[orders].T)
    s = settings(number, steps, rate, len(COUNTS), **{"local.batch-size": batch})
    return lines([torch.ones(n, 1) for n in COUNTS], targets, CHAINS, s)


def batch_variance(y: Tensor, steps: int, rate: float, batch: int) -> float:
    """Return the variance that its batches give to a client's round, y (n,) its targets.

    The round ends at sum_i c_i y_i + ..., c = eta q^(steps after it)/batch of the places drawn in a
    row. Places of one pass have the covariance -s^2/(n-1), of different passes 0.
    """
    n = len(y)
    after = torch.arange(steps - 1, -1, -1).double()
    places = (rate * (1 - rate) ** after / batch).repeat_interleave(batch)
    passes = torch.split(places, n)
    counted = sum(n * c.square().sum() - c.sum().square() for c in passes)
    return float(counted * y.double().var(correction=0) / (n - 1))


def ratios(clients: Federation) -> tuple[float, float]:
    """Return the exact stationary variance over the posterior's: with full batches, with these."""
    local = clients.settings.local
    decay = 1 - (1 - local.step_size.rate) ** (2 * local.steps)
    noise = 2 * local.step_size.rate / TOTAL * decay / (1 - (1 - local.step_size.rate) ** 2)
    extra = sum(
        (n / TOTAL) ** 2
        * batch_variance(x[:, 0, 0, 1], local.steps, local.step_size.rate, local.batch_size)
        for (x, _), n in zip(clients.parts, COUNTS, strict=True)
    )
    return noise / decay * TOTAL, (noise + extra) / decay * TOTAL


def measured(clients: Federation, folder: Path) -> tuple[float, float]:
    """Return the mean's error in posterior deviations, and the variance over the posterior's."""
    models = [state.model for state in looped(clients, folder)]
    samples = torch.stack(models[len(models) // 4 :]).double()
    want = float(torch.cat([x[:, 0, 0, 1] for x, _ in clients.parts]).double().mean())
    error = float(samples.mean() - want) * TOTAL**0.5
    return error, float((samples - want).square().mean()) * TOTAL


@pytest.mark.parametrize(
    ("steps", "rate", "full", "small"),
    [
        (1, 0.01, 1.005, 1.029),
        (1, 0.05, 1.026, 1.150),
        (1, 0.2, 1.111, 1.652),
        (10, 0.01, 1.005, 1.008),
        (10, 0.05, 1.026, 1.048),
        (10, 0.2, 1.111, 1.329),
    ],
)
def test_what_batches_of_eight_add(steps: int, rate: float, full: float, small: float) -> None:
    """The guide's numbers: full batches, batches of 8 of 20 to 60 images."""
    assert ratios(federation(1, steps, rate, 8)) == pytest.approx((full, small), abs=0.001)


@pytest.mark.parametrize(("steps", "batch", "number"), [(1, 8, 300), (4, 5, 100), (10, 8, 60)])
def test_chains_have_the_heat_of_their_batches(
    steps: int, batch: int, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Less than a pass, a pass of the smallest client, several and a part: .03 sd, 3 %."""
    clients = federation(number, steps, 0.2, batch)
    error, variance = measured(clients, tmp_path)
    assert abs(error) < 0.03
    assert variance == pytest.approx(ratios(clients)[1], rel=0.03)
