"""Many chains at once through the client and the local engine, on losses that can be solved.

An image holds a design row of d values and its target, or one target for each of C chains; the
head's weights are (C, d), one chain a row, and the potential adds up the chains' squared errors, so
that none touches another.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from fedcel.data import Images
from fedcel.federation import (
    ClientParts,
    ClientRound,
    RoundTrainer,
    ServerState,
    init_server_state,
    play_round,
)
from fedcel.nets.cut import Cut
from fedcel.nets.flat_net import FlatNet
from fedcel.nets.split_net import SplitNet
from fedcel.posterior import RoundPlan
from fedcel.run_parts import build_client_parts, build_server_parts
from fedcel.settings import Settings, parse_settings
from fedcel.tensors import State
from fedcel.testing.samplers import SETTINGS
from sims.engines.local import LocalTrainer

Change = Callable[[float, int], float]


class Lines(nn.Module):
    """C linear regressions side by side, unit noise."""

    def __init__(self, chains: int, values: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(chains, values))

    def forward(self, message: Tensor) -> Tensor:
        """Return the residuals (B, C)."""
        design, targets = message.split([self.w.shape[1], message.shape[1] - self.w.shape[1]], 1)
        return targets - design @ self.w.T

    @staticmethod
    def potential(residuals: Tensor, labels: Tensor) -> Tensor:
        """Return the chains' mean negative log-likelihoods, added up."""
        return residuals.square().mean(0).sum() / 2


@dataclass
class Federation:
    """Clients' images and labels, a net to sample, the settings of a run."""

    parts: list[tuple[Tensor, Tensor]]
    flat: FlatNet
    settings: Settings
    change: Change = lambda noise, client: noise
    """Turns the deviation of a client's noise into a wrong one."""

    def models(self) -> Iterator[Tensor]:
        """Yield the global models (P,) round by round, as engine and clients make them.

        Only the images, the net and, where `change` makes it wrong, the noise are the test's.
        """
        prepare = RoundTrainer.prepare_client

        def change(
            trainer: RoundTrainer, client: int, state: State | None, plan: RoundPlan
        ) -> ClientRound:
            prepared = prepare(trainer, client, state, plan)
            return prepared._replace(noise=self.change(prepared.noise, client))

        with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch_client:
            patch_client.setattr(RoundTrainer, "prepare_client", change)
            for state in looped(self, Path(folder)):
                yield state.model.clone()

    def sample(self, burn: int, every: int) -> Tensor:
        """Return models (S, P) kept after `burn` rounds, every `every`-th."""
        return torch.stack(
            [m for number, m in enumerate(self.models()) if number >= burn and number % every == 0]
        )


def lines(designs: list[Tensor], targets: list[Tensor], chains: int, s: Settings) -> Federation:
    """Return C chains of a regression: designs (N_k, d), targets (N_k, 1 or C)."""
    values = designs[0].shape[1]
    head = Lines(chains, values)
    flat = FlatNet(SplitNet(nn.Flatten(), head, Cut(0.0), values + targets[0].shape[1]))
    parts = [
        (torch.cat(pair, 1)[:, None, None], torch.zeros(len(pair[0]), dtype=torch.long))
        for pair in zip(designs, targets, strict=True)
    ]
    return Federation(parts, flat, s)


def settings(rounds: int, steps: int, rate: float, clients: int, **more: object) -> Settings:
    """Return the settings of a chain without burn-in: constant step, full batches, no prior."""
    own = {
        "rounds": rounds,
        "clients": clients,
        "local.steps": steps,
        "local.batch-size": 10_000,
        "local.rate": rate,
    }
    return parse_settings(SETTINGS | own | more)


def unequal(counts: list[int], chains: int, s: Settings, seed: int = 0) -> Federation:
    """Return clients of a regression on two values, each with its own spread of the design."""
    stream = torch.Generator().manual_seed(seed)
    truth = torch.randn(2, 1, generator=stream)
    designs = [
        torch.randn(n, 2, generator=stream) * (0.4 + 0.8 * torch.rand(2, generator=stream))
        for n in counts
    ]
    targets = [x @ truth + torch.randn(len(x), 1, generator=stream) for x in designs]
    return lines(designs, targets, chains, s)


def client_parts(federation: Federation) -> ClientParts:
    """Return what clients train with: these images and this net, no loss besides."""
    parts = build_client_parts(federation.settings)
    return parts._replace(
        images=lambda client: Images(*federation.parts[client]),
        workspace=lambda: federation.flat,
        nets=lambda count: federation.flat,
        schedule=parts.schedule._replace(terms=lambda: ()),
    )


def looped(federation: Federation, folder: Path) -> Iterator[ServerState]:
    """Yield the server's state after each round of the local engine, of these images and net."""
    s, state = federation.settings, init_server_state(federation.flat.vector)
    examples = {k: len(y) for k, (_, y) in enumerate(federation.parts)}
    trainer = LocalTrainer(client_parts(federation), folder)
    for _ in range(s.rounds):
        state, _ = play_round(
            build_server_parts(s), state, examples, trainer, device_size=federation.flat.device_size
        )
        yield state


class Quadratic(NamedTuple):
    """A client's mean potential w'Hw/2 - w'b, its gradient H w - b, of its share of the images."""

    hessian: Tensor
    push: Tensor
    share: float


def quadratics(federation: Federation) -> list[Quadratic]:
    """Return the clients' potentials in double precision; the first chain's targets."""
    values = federation.flat.net.head.w.shape[1]
    pairs = [
        images[:, 0, 0, : values + 1].double().split(values, 1) for images, _ in federation.parts
    ]
    total = sum(len(x) for x, _ in pairs)
    return [Quadratic(x.T @ x / len(x), (x.T @ y[:, 0]) / len(x), len(x) / total) for x, y in pairs]


def whole(parts: list[Quadratic], examples: int) -> tuple[Tensor, Tensor]:
    """Return the posterior's mean (d,) and covariance (d, d), flat prior."""
    hessian = sum(part.share * part.hessian for part in parts)
    mean = torch.linalg.solve(hessian, sum(part.share * part.push for part in parts))
    return mean, torch.linalg.inv(examples * hessian)


class Powers(NamedTuple):
    """What local steps make of a quadratic, A = I - eta H, in numbers that no noise is in."""

    last: Tensor  # A^tau
    total: Tensor  # eta sum_{j < tau} A^j
    squares: Tensor  # sum_{j < tau} A^{2j}


def powers(hessian: Tensor, rate: float, steps: int) -> Powers:
    """Return the sums of powers of `steps` local steps of size `rate`."""
    eye = torch.eye(len(hessian), dtype=torch.float64)
    matrices = [eye]
    for _ in range(steps):
        matrices.append(matrices[-1] @ (eye - rate * hessian))
    return Powers(matrices[-1], rate * sum(matrices[:-1]), sum(a @ a for a in matrices[:-1]))


class Map(NamedTuple):
    """A round: w -> drift w + push + N(0, noise)."""

    drift: Tensor
    push: Tensor
    noise: Tensor


def round_map(
    federation: Federation, weights: dict[int, float], noise_weights: dict[int, float]
) -> Map:
    """Return the round of these clients: `weights` of their deltas, `noise_weights` of their noise.

    Per step a client adds noise of variance 2 eta/(N w_k), w_k of `noise_weights`; its delta
    counts w_k. No prior, temperature 1, full batches.
    """
    s, examples = federation.settings, sum(len(y) for _, y in federation.parts)
    parts = quadratics(federation)
    eye = torch.eye(len(parts[0].push), dtype=torch.float64)
    drift, push, noise = eye.clone(), torch.zeros_like(parts[0].push), torch.zeros_like(eye)
    for k, weight in weights.items():
        part = parts[k]
        last, total, squares = powers(part.hessian, s.local.step_size.rate, s.local.steps)
        drift += weight * (last - eye)
        push += weight * total @ part.push
        noise += weight**2 * 2 * s.local.step_size.rate / (examples * noise_weights[k]) * squares
    return Map(drift, push, noise)


def whitened(models: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """Return models (C, d) in units in which they are N(0, I) if mean and covariance are right."""
    off = models.double() - mean
    return torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), off.T, upper=False).T


def misses(samples: Iterable[Tensor]) -> tuple[float, float]:
    """Return by how much whitened samples miss mean 0, in deviations, and covariance I."""
    values = torch.cat(list(samples))
    gap = values.T @ values / len(values) - torch.eye(values.shape[1], dtype=torch.float64)
    return float(values.mean(0).abs().max()), float(gap.abs().max())
