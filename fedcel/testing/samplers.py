"""Contract of samplers: through the real local update, on a posterior known exactly."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedcel.data import Images
from fedcel.federation import (
    ClientRound,
    advance_model,
    init_server_state,
    train_clients,
    weighted_sum,
)
from fedcel.nets import Cut, FlatNet, Mlp, SplitNet, build_net
from fedcel.posterior import (
    SAMPLER_CHECKS,
    RoundPlan,
    SamplerCase,
    build_sampler,
    weigh_clients,
)
from fedcel.run_parts import build_server_parts
from fedcel.seeding import make_generator, make_twice
from fedcel.settings import LocalSettings, Settings, parse_settings
from fedcel.testing.check_names import name_check

COUNTS = (4, 12)  # examples of the two clients: unequal shares need unequal noise
CURVATURES = (1.0, 0.25)
CHAINS = 2000  # of each curvature
STEPS, ROUNDS, BURN_IN, THIN = 5, 80, 40, 4
RATE = 0.05


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


class SamplerContract:
    """Tests that a sampler must pass, through the real local update.

    Name your subclass `TestMine`, set `name`; pytest runs the rest.

    Attributes:
        name: Import string of your sampler, as `local.sampler` would have it.
        tolerance: By how much the posterior's variance may be missed, relatively, at a step of
            eta = .05 over a curvature of 1: finite steps and chance; plain Langevin has 2.6 % and
            2 %.
    """

    name: str
    tolerance = 0.1

    def settings(self, temperature: float) -> Settings:
        """Make the settings of a chain without burn-in and prior, of full batches.

        Args:
            temperature: T of the chain.

        Returns:
            The settings of a run with your sampler.
        """
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

    def run_chains(
        self, temperature: float, start: float = 0.0, seed: int = 0
    ) -> Iterator[Float[Tensor, " M"]]:
        """Run independent chains in a federation of two clients.

        Args:
            temperature: T of the chains.
            start: Where all of them begin.
            seed: The seed of the noise.

        Yields:
            The server's model after each round, one value a chain (M,).
        """
        settings, images, total = self.settings(temperature), make_clients(), sum(COUNTS)
        server = build_server_parts(settings)
        flat = FlatNet(SplitNet(nn.Flatten(), GaussianMeans(), Cut(0.0), 1))
        state = init_server_state(torch.full_like(flat.vector, start))
        weights = weigh_clients(dict(enumerate(COUNTS)), list(range(len(COUNTS))))
        for number in range(1, ROUNDS + 1):
            deltas = []
            for k, weight in weights.items():
                plan = server.schedule.plan(number, weight, total)
                streams = partial(make_generator, seed, round_number=number, client=k)
                client = ClientRound(images[k], plan, streams)
                (update,) = train_clients(flat, state.model, [client], local=settings.local)
                deltas.append(update.delta)
            delta = weighted_sum(deltas, list(weights.values()))
            state = advance_model(server, state, delta)
            yield state.model.clone()

    @pytest.mark.parametrize("check", SAMPLER_CHECKS, ids=name_check)
    def test_contract(self, check: Callable[[SamplerCase], None]) -> None:
        """Each line to which every run holds a sampler of your own."""
        local = self.settings(1.0).local
        check(SamplerCase(lambda: build_sampler(local), local.steps))

    def test_it_samples_the_posterior(self) -> None:
        """Two clients of unequal size: the mean, and T/(N lambda) at two curvatures and two T."""
        mean = find_mode()
        for temperature in (1.0, 0.25):
            models = list(self.run_chains(temperature, mean))[BURN_IN::THIN]
            chains = torch.stack(models).view(len(models), len(CURVATURES), CHAINS).double()
            for curvature, samples in zip(CURVATURES, chains.unbind(1), strict=True):
                variance = temperature / (sum(COUNTS) * curvature)
                assert abs(float(samples.mean() - mean)) < 0.1 * variance**0.5
                error = float((samples - mean).square().mean()) / variance - 1
                assert abs(error) < self.tolerance, (temperature, curvature)

    def test_without_temperature_it_finds_the_mode(self) -> None:
        """Nothing is drawn: all chains go to the mean of all examples, and to the same bits."""
        *_, last = self.run_chains(0.0)
        (steep, flat), mean = torch.split(last, CHAINS), find_mode()
        assert abs(float(steep[0]) - mean) < 1e-3
        assert abs(float(flat[0]) - mean) < 0.1 * abs(mean)
        assert torch.equal(steep, steep[:1].expand(CHAINS))

    def test_the_seed_decides_the_chain(self) -> None:
        """Same seed, same bits, another seed others; global streams are neither used nor moved."""
        first, again = make_twice(lambda: next(self.run_chains(1.0)))
        assert torch.equal(first, again)
        assert not torch.equal(first, next(self.run_chains(1.0, seed=1)))

    def test_a_frozen_encoder_stands_still(self) -> None:
        """After burn-in the head moves alone, every parameter of it; all stays finite."""
        net, stream = Mlp(features=6, width=9), torch.Generator().manual_seed(1)
        flat = FlatNet(build_net(net, (1, 4, 4), 3, stream, cut=Cut(0.1)))
        plan = RoundPlan(0.1, 0.0, 0.0, 0.05, True, 1.0, steps=3)
        images = Images(torch.rand(12, 1, 4, 4, generator=stream), torch.arange(12) % 3)
        local = LocalSettings(sampler=self.name, steps=3, batch_size=4)
        client = ClientRound(images, plan, partial(make_generator, 3))
        (update,) = train_clients(flat, flat.vector.clone(), [client], local=local)
        assert not update.delta[: flat.cut].any()
        assert update.delta[flat.cut :].all()
        assert update.delta.isfinite().all()
