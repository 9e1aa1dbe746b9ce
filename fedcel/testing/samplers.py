"""What every sampler must hold: through the real local update, on a posterior known exactly."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedcel.federation import (
    SHARED_NOISE,
    advance_model,
    init_server_state,
    local_update,
    weighted_sum,
)
from fedcel.nets import Cut, FlatNet, SplitNet, split_net
from fedcel.posterior import RoundPlan, plan_round, weigh_clients
from fedcel.seeding import make_generator
from fedcel.settings import LocalSettings, NetSettings, Settings, parse_settings

COUNTS = (4, 12)  # examples of the two clients: unequal shares need unequal noise
CURVATURES = (1.0, 0.25)
CHAINS = 2000  # of each curvature
STEPS, ROUNDS, BURN, EVERY = 5, 80, 40, 4
RATE = 0.05


class Means(nn.Module):
    """The means of independent Gaussians of known precision, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(CHAINS * len(CURVATURES)))

    def forward(self, message: Float[Tensor, "B 1"]) -> Float[Tensor, "B M"]:
        """Return how far each value is from each mean, in deviations."""
        return (message - self.w) * curvatures().sqrt()

    @staticmethod
    def potential(gap: Float[Tensor, "B M"], labels: Tensor) -> Float[Tensor, ""]:
        """Return the mean negative log-likelihood of an example, added up over the Gaussians."""
        return gap.square().mean(0).sum() / 2


def curvatures() -> Float[Tensor, " M"]:
    """Return the precision of each Gaussian."""
    return torch.tensor(CURVATURES).repeat_interleave(CHAINS)


def values() -> list[Float[Tensor, "n 1 1 1"]]:
    """Return the clients' examples, of different means."""
    stream = torch.Generator().manual_seed(1)
    return [k + torch.randn(n, 1, 1, 1, generator=stream) for k, n in enumerate(COUNTS)]


class SamplerContract:
    """Name your subclass `TestMine`, set `name` to your sampler's import string; pytest runs on.

    `tolerance` is by how much the posterior's variance may be missed, relatively, at a step of
    eta = .05 over a curvature of 1: finite steps and chance; plain Langevin has 2.6 % and 2 %.
    """

    name: str
    tolerance = 0.1

    def settings(self, temperature: float) -> Settings:
        """Return the settings of a chain without burn-in and prior, of full batches."""
        return parse_settings(
            {
                "local.sampler": self.name,
                "temperature": temperature,
                "rounds": ROUNDS,
                "clients": len(COUNTS),
                "local.steps": STEPS,
                "local.batch-size": 1000,
                "local.rate": RATE,
                "local.schedule": "constant",
                "prior.mode": "none",
                "chain.burn-in": 0.0,
                "chain.scope": "full",
                "strategy.momentum": 0.0,
                "net.noise": 0.0,
            }
        )

    def models(
        self, temperature: float, start: float = 0.0, seed: int = 0
    ) -> Iterator[Float[Tensor, " M"]]:
        """Yield the server's model after each round of two clients; all chains begin at `start`."""
        s, parts = self.settings(temperature), values()
        flat = FlatNet(SplitNet(nn.Flatten(), Means(), Cut(0.0), 1))
        state = init_server_state(torch.full_like(flat.vector, start))
        examples = dict(enumerate(COUNTS))
        for number in range(1, ROUNDS + 1):
            weights = weigh_clients(examples, list(examples))
            deltas = []
            for k, weight in weights.items():
                plan = plan_round(s, number, weight, sum(COUNTS))

                def streams(purpose: str, number: int = number, k: int = k) -> torch.Generator:
                    return make_generator(
                        seed, purpose, number, 0 if purpose == SHARED_NOISE else k
                    )

                labels = torch.zeros(len(parts[k]), dtype=torch.long)
                found = local_update(
                    flat, state.model, parts[k], labels, plan=plan, local=s.local, streams=streams
                )
                deltas.append(found.delta)
            delta = weighted_sum(deltas, list(weights.values()))
            whole = plan_round(s, number, 1.0, sum(COUNTS))
            state = advance_model(s, state, delta, plan=whole, cut=0)
            yield state.model.clone()

    def test_it_samples_the_posterior(self) -> None:
        """Two clients of unequal size: the mean, and T/(N lambda) at two curvatures and two T."""
        want = float(torch.cat(values()).mean())
        for temperature in (1.0, 0.25):
            kept = list(self.models(temperature, want))[BURN::EVERY]
            chains = torch.stack(kept).view(len(kept), len(CURVATURES), CHAINS).double()
            for curvature, found in zip(CURVATURES, chains.unbind(1), strict=True):
                variance = temperature / (sum(COUNTS) * curvature)
                assert abs(float(found.mean() - want)) < 0.1 * variance**0.5
                off = float((found - want).square().mean()) / variance - 1
                assert abs(off) < self.tolerance, (temperature, curvature)

    def test_without_temperature_it_finds_the_mode(self) -> None:
        """Nothing is drawn: all chains go to the mean of all examples, and to the same bits."""
        *_, last = self.models(0.0)
        steep, flat = torch.split(last, CHAINS)
        want = float(torch.cat(values()).mean())
        assert abs(float(steep[0]) - want) < 1e-3
        assert abs(float(flat[0]) - want) < 0.1 * abs(want)
        assert torch.equal(steep, steep[:1].expand(CHAINS))

    def test_the_seed_decides_the_chain(self) -> None:
        """Same seed, same bits, another seed others; global streams are neither used nor moved."""
        before = torch.random.get_rng_state()
        first, other = (next(self.models(1.0, seed=seed)) for seed in (0, 1))
        assert torch.equal(torch.random.get_rng_state(), before)
        torch.rand(3)
        again = next(self.models(1.0))
        torch.random.set_rng_state(before)
        assert torch.equal(first, again)
        assert not torch.equal(first, other)

    def test_a_frozen_encoder_stands_still(self) -> None:
        """After burn-in the head moves alone, every parameter of it; all stays finite."""
        net = split_net.build_net(
            NetSettings(features=6, width=9),
            (1, 4, 4),
            3,
            torch.Generator().manual_seed(1),
            Cut(0.1),
        )
        flat, stream = FlatNet(net), torch.Generator().manual_seed(2)
        received, plan = (
            flat.vector.clone(),
            RoundPlan(0.1, 0.0, 0.0, 0.0, 0.0, 0.05, True, 1.0, steps=3),
        )
        x, y = torch.rand(12, 1, 4, 4, generator=stream), torch.arange(12) % 3
        local = LocalSettings(sampler=self.name, steps=3, batch_size=4)
        found = local_update(
            flat, received, x, y, plan=plan, local=local, streams=lambda p: make_generator(3, p)
        )
        assert not found.delta[: flat.cut].any()
        assert found.delta[flat.cut :].all()
        assert found.delta.isfinite().all()
