"""Contract of samplers: through the real local update, on a posterior known exactly."""

from collections.abc import Iterator
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedcel.data import Images
from fedcel.federation import (
    ClientRound,
    advance_model,
    init_server_state,
    train_clients,
    weigh_clients,
    weighted_sum,
)
from fedcel.nets import Cut, FlatNet, Mlp, SplitNet, build_net
from fedcel.plugins import hold_contract, require
from fedcel.posterior import (
    SAMPLER_CHECKS,
    RoundOrder,
    RoundPlan,
    SamplerCase,
    make_client_sampler,
)
from fedcel.run_parts import build_server_parts
from fedcel.settings import LocalSettings, parse_settings
from fedcel.torch_state import make_generator, make_twice

COUNTS = (4, 12)  # examples of the two clients: unequal shares need unequal noise
CURVATURES = (1.0, 0.25)
CHAINS = 2000  # of each curvature
STEPS, ROUNDS, BURN_IN, THIN = 5, 80, 40, 4
SETTINGS = {
    "temperature": 1.0,
    "rounds": ROUNDS,
    "clients": len(COUNTS),
    "local.steps": STEPS,
    "local.batch-size": 1000,
    "local.rate": 0.05,
    "local.schedule": "constant",
    "prior.mode": "none",
    "chain.burn-in": 0.0,
    "chain.scope": "full",
    "strategy.momentum": 0.0,
    "net.noise": 0.0,
}
"""Of a chain of full batches, without burn-in and prior."""


class GaussianMeans(nn.Module):
    """Means of independent Gaussians of known precision, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(CHAINS * len(CURVATURES)))

    def forward(self, smashed: Float[Tensor, "B 1"]) -> Float[Tensor, "B M"]:
        """Return how far each value is from each mean, in deviations."""
        return (smashed - self.w) * torch.tensor(CURVATURES).repeat_interleave(CHAINS).sqrt()

    @staticmethod
    def potential(gap: Float[Tensor, "B M"], labels: Tensor) -> Float[Tensor, ""]:
        """Return the mean negative log-likelihood of an example, added up over the Gaussians."""
        return gap.square().mean(0).sum() / 2


def make_clients() -> list[Images]:
    """Return the clients' examples, of different means; labels play no part."""
    stream = torch.Generator().manual_seed(1)
    return [
        Images(k + torch.randn(n, 1, 1, 1, generator=stream), torch.zeros(n, dtype=torch.long))
        for k, n in enumerate(COUNTS)
    ]


def find_mode() -> float:
    """Return the mean of all examples."""
    return float(torch.cat([client.x for client in make_clients()]).mean())


def check_sampler(name: str, *, tolerance: float = 0.1) -> None:
    """Hold a sampler to its contract, through the real local update.

    Args:
        name: Import string of your sampler, as `local.sampler` would have it.
        tolerance: By how much the posterior's variance may be missed, relatively, at a step of
            eta = .05 over a curvature of 1: finite steps and chance; plain Langevin has 2.6 % and
            2 %.
    """
    local = parse_settings(SETTINGS | {"local.sampler": name}).local
    hold_contract(SAMPLER_CHECKS, SamplerCase(lambda: make_client_sampler(local), local.steps))
    _check_posterior(name, tolerance)
    _check_mode(name)
    first, again = make_twice(lambda: next(run_chains(name, 1.0)))
    require(torch.equal(first, again), "the same seed must give the same chain")
    is_other = not torch.equal(first, next(run_chains(name, 1.0, seed=1)))
    require(is_other, "another seed must give another chain")
    _check_frozen_encoder(name)


def run_chains(
    name: str, temperature: float, start: float = 0.0, seed: int = 0
) -> Iterator[Float[Tensor, " M"]]:
    """Yield the model of independent chains, which begin at `start`, after each round."""
    images, total = make_clients(), sum(COUNTS)
    changes = {"local.sampler": name, "temperature": temperature}
    server = build_server_parts(parse_settings(SETTINGS | changes))
    flat = FlatNet(SplitNet(nn.Flatten(), GaussianMeans(), Cut(0.0), 1))
    state = init_server_state(torch.full_like(flat.vector, start))
    weights = weigh_clients(dict(enumerate(COUNTS)), list(range(len(COUNTS))))
    for number in range(1, ROUNDS + 1):
        plan, deltas = server.schedule.plan(RoundOrder(number, total)), []
        for k, weight in weights.items():
            streams = partial(make_generator, seed, round_number=number, client=k)
            client = ClientRound(images[k], streams, plan.noise(weight))
            (update,) = train_clients(flat, state.model, [client], plan)
            deltas.append(update.delta)
        delta = weighted_sum(deltas, list(weights.values()))
        state = advance_model(server, state, delta)
        yield state.model.clone()


def _check_posterior(name: str, tolerance: float) -> None:
    """Two clients of unequal size: the mean, and T/(N lambda) at two curvatures and two T."""
    mean = find_mode()
    for temperature in (1.0, 0.25):
        models = list(run_chains(name, temperature, mean))[BURN_IN::THIN]
        chains = torch.stack(models).view(len(models), len(CURVATURES), CHAINS).double()
        for curvature, samples in zip(CURVATURES, chains.unbind(1), strict=True):
            variance = temperature / (sum(COUNTS) * curvature)
            place = f"at temperature {temperature:g} and curvature {curvature:g}"
            miss = abs(float(samples.mean() - mean)) / variance**0.5
            line = f"samples must have the posterior's mean {place}"
            require(miss < 0.1, f"{line}; it is missed by {miss:.2g} deviations")
            error = float((samples - mean).square().mean()) / variance - 1
            line = f"samples must have the posterior's variance {place}"
            require(abs(error) < tolerance, f"{line}; it is missed by {100 * error:+.3g} %")


def _check_mode(name: str) -> None:
    """Without temperature all chains go to the mean of all examples, and to the same bits."""
    *_, last = run_chains(name, 0.0)
    (steep, flat), mean = torch.split(last, CHAINS), find_mode()
    is_found = abs(float(steep[0]) - mean) < 1e-3 and abs(float(flat[0]) - mean) < 0.1 * abs(mean)
    require(is_found, "at temperature 0 it must find the posterior's mode")
    require(torch.equal(steep, steep[:1].expand(CHAINS)), "at temperature 0 nothing may be drawn")


def _check_frozen_encoder(name: str) -> None:
    """After burn-in the head moves alone, every parameter of it; all stays finite."""
    net, stream = Mlp(features=6, width=9), torch.Generator().manual_seed(1)
    flat = FlatNet(build_net(net, (1, 4, 4), 3, stream, cut=Cut(0.1)))
    images = Images(torch.rand(12, 1, 4, 4, generator=stream), torch.arange(12) % 3)
    local = LocalSettings(sampler=name, steps=3, batch_size=4)
    plan = RoundPlan(0.1, 0.0, 0.0, 0.05**2, True, 1.0, local=local)
    client = ClientRound(images, partial(make_generator, 3), plan.noise(1.0))
    (update,) = train_clients(flat, flat.vector.clone(), [client], plan)
    encoder, head = update.delta[: flat.device_size], update.delta[flat.device_size :]
    require(not encoder.any(), "after burn-in the encoder must stand still")
    is_moved = bool(head.all() and head.isfinite().all())
    require(is_moved, "after burn-in every parameter of the head must move, to finite values")
