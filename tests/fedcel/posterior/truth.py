"""Many chains at once through the local update and the server's step, on losses that can be solved.

An image holds a design row of d values and its target, or one target for each of C chains; the
head's weights are (C, d), one chain a row, and the potential adds up the chains' squared errors, so
that none touches another.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedcel import aggregation, rounds, schedule
from fedcel.aggregation import ServerState
from fedcel.arrays import FlatNet
from fedcel.cut import Cut
from fedcel.nets import SplitNet
from fedcel.schedule import Plan
from fedcel.seeding import generator
from fedcel.settings import Settings, parse
from fedcel.training import COMMON, Steer, full_gradient, local_update

Change = Callable[[Plan, int], Plan]


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
    change: Change = lambda plan, client: plan
    """Turns a client's plan into a wrong one."""

    def models(self) -> Iterator[Tensor]:
        """Yield the global models (P,) round by round."""
        state = aggregation.start(self.flat.vector)
        examples = {k: len(y) for k, (_, y) in enumerate(self.parts)}
        for number in range(1, self.settings.rounds + 1):
            weights = schedule.shares(
                self.settings, examples, schedule.chosen(self.settings, number)
            )
            shares = list(weights.values())
            mean = None
            if self.settings.local.control == "fresh":
                told = [self.gradient(state.model, number, k) for k in weights]
                mean = aggregation.weighted_sum(told, shares)
            deltas = [self.delta(state, number, k, weights[k], mean) for k in weights]
            delta = aggregation.weighted_sum(deltas, shares)
            state = rounds.advance(self.settings, state, delta, 0, sum(examples.values()))
            yield state.model.clone()

    def gradient(self, model: Tensor, number: int, client: int) -> Tensor:
        """Return a client's mean gradient."""
        return full_gradient(self.flat, model, *self.parts[client], self.streams(number, client))

    def delta(
        self, state: ServerState, number: int, client: int, weight: float, mean: Tensor | None
    ) -> Tensor:
        """Return a client's update."""
        total = sum(len(y) for _, y in self.parts)
        plan = self.change(schedule.plan(self.settings, number, weight, total), client)
        shift = None if mean is None else mean - self.gradient(state.model, number, client)
        return local_update(
            self.flat,
            state.model,
            *self.parts[client],
            plan,
            self.settings.local,
            self.streams(number, client),
            steer=Steer(shift, rounds.step_sizes(state)),
        ).delta

    def streams(self, number: int, client: int) -> Callable[[str], torch.Generator]:
        """Return the streams of a client's round."""
        return lambda purpose: generator(
            self.settings.seed, purpose, number, 0 if purpose == COMMON else client
        )

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
    return parse(
        {
            "rounds": rounds,
            "clients": clients,
            "local.steps": steps,
            "local.batch-size": 10_000,
            "local.rate": rate,
            "local.schedule": "constant",
            "prior.mode": "none",
            "chain.burn-in": 0.0,
            "chain.scope": "full",
            "strategy.momentum": 0.0,
            "net.noise": 0.0,
            **more,
        }
    )
