"""The chain on digits against Hamiltonian Monte Carlo, where no closed form is known."""

import math
from functools import lru_cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from fedcel.data import Digits, Dirichlet, Splits, load_splits
from fedcel.metrics import calibration
from fedcel.nets.cut import Cut
from fedcel.nets.flat_net import FlatNet
from fedcel.nets.split_net import SplitNet
from fedcel.settings import DataSettings
from tests.fedcel.posterior.truth import Change, Federation, settings

SCALE = 0.15  # s0, the prior's standard deviation
CLIENTS = 10


@lru_cache(maxsize=1)
def digits() -> Splits:
    """Return digits at ten clients of few classes."""
    return load_splits(DataSettings(source=Digits(), partition=Dirichlet(alpha=0.3)), CLIENTS, 0)


def potential(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return -log posterior of weights (C, 10, 65) on images (N, 65), one value a chain."""
    logits = torch.einsum("nf,ckf->nck", x, w).log_softmax(2)
    likelihood = (logits * one_hot(y, 10)[:, None]).sum((0, 2))
    return w.square().sum((1, 2)) / (2 * SCALE**2) - likelihood


def hamiltonian(x: Tensor, y: Tensor, draws: int = 120, chains: int = 4) -> Tensor:
    """Return samples (S, 10, 65); Neal, Handbook of MCMC, 2011, algorithm 5.2."""
    stream = torch.Generator().manual_seed(0)
    w = torch.zeros(chains, 10, 65)
    samples, accepted = [], 0.0
    for draw in range(draws):
        step = 0.03 * (0.8 + 0.4 * float(torch.rand(1, generator=stream)))
        momentum = torch.randn(w.shape, generator=stream)
        position, p = w.clone().requires_grad_(), momentum.clone()
        energy = potential(position, x, y)
        before = energy.detach() + momentum.square().sum((1, 2)) / 2
        (slope,) = torch.autograd.grad(energy.sum(), position)
        for _ in range(20):
            p = p - step / 2 * slope
            position = (position + step * p).detach().requires_grad_()
            energy = potential(position, x, y)
            (slope,) = torch.autograd.grad(energy.sum(), position)
            p = p - step / 2 * slope
        after = energy.detach() + p.square().sum((1, 2)) / 2
        take = torch.rand(chains, generator=stream).log() < before - after
        accepted += float(take.double().mean()) / draws
        w = torch.where(take[:, None, None], position.detach(), w)
        if draw >= draws // 3:
            samples.append(w)
    assert accepted > 0.6
    return torch.cat(samples)


def disagreement(samples: Tensor, x: Tensor) -> float:
    """Return the mean BALD in nats of weights (S, 10, 65)."""
    return float(calibration.bald(torch.einsum("nf,ckf->cnk", x, samples).softmax(2)).mean())


def chain(change: Change | None = None, rounds: int = 300, **more: object) -> Tensor:
    """Return samples (S, 10, 65) of the federated chain: full batches, two local steps.

    Ten steps of unequal clients drift so far that the disagreement is 1.4 times as large.
    """
    raw = {
        "net.noise": 0.0,
        "prior.scale": SCALE,
        **more,
    }
    net = SplitNet(nn.Flatten(), nn.Linear(64, 10), Cut(0.0), 64)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    s = settings(rounds, 2, 0.4, CLIENTS, **raw)
    parts = [(part.x, part.y) for part in digits().clients]
    federation = Federation(parts, FlatNet(net), s)
    federation.change = change or federation.change
    rows = federation.sample(100, 10)
    weight, bias = rows.split([640, 10], 1)
    return torch.cat([weight.view(-1, 10, 64), bias[:, :, None]], 2)


def naive(noise: float, client: int) -> float:
    """Draw noise as if each client held all examples."""
    counts = [len(part.y) for part in digits().clients]
    return noise * math.sqrt(counts[client] / sum(counts))


@pytest.mark.long
def test_disagreement_is_that_of_hmc_and_accuracy_tells_nothing() -> None:
    """BALD within 15 %; noise by N, a point and a chain ten times as hot are far from it."""
    x, y = digits().training
    training, tested = (
        torch.cat([images.flatten(1), torch.ones(len(images), 1)], 1)
        for images in (x, digits().test.x)
    )
    truth = hamiltonian(training, y)
    want = disagreement(truth, tested)
    chains = {
        "right": chain(rounds=700),
        "naive": chain(naive),
        "point": chain(temperature=0.0),
        "hot": chain(temperature=10.0),
    }
    disagreements = {name: disagreement(samples, tested) for name, samples in chains.items()}
    assert disagreements["right"] == pytest.approx(want, rel=0.15)
    assert disagreements["naive"] < 0.5 * want
    assert disagreements["point"] < 0.05 * want
    assert disagreements["hot"] > 2.5 * want
    hits = [
        torch.einsum("nf,ckf->cnk", tested, s).softmax(2).mean(0).argmax(1) == digits().test.y
        for s in (truth, *(chains[name] for name in ("right", "naive", "point")))
    ]
    accuracies = [float(is_right.double().mean()) for is_right in hits]
    assert max(accuracies) - min(accuracies) < 0.02
    assert min(accuracies) > 0.8
