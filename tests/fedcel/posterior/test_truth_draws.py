"""Rounds without some of the clients, drawn or lost: the right heat given who was there, and more.

Two parts, by the law of total variance. Given who took part, the chain's mean and covariance follow
an exact recursion, and the noise's own part is the posterior's. That others take part each round
moves the mean about: heat on top, exactly known too.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
from torch import Tensor

from clients import make_client_app
from clients.flower import client_app, posterior_client
from fedcel.data import Images
from fedcel.federation import init_server_state
from fedcel.federation.aggregation import renormalise_weights
from fedcel.flower_messages import allow_messages
from fedcel.nets.flat_net import to_arrays
from fedcel.run_parts import build_server_parts
from strategies import PosteriorStrategy
from strategies.node_registry import NodeRegistry
from tests.fedcel.posterior.truth import (
    Federation,
    Map,
    client_parts,
    looped,
    misses,
    quadratics,
    round_map,
    settings,
    unequal,
    whitened,
    whole,
)

COUNTS = [8, 14, 20, 26, 32, 40]
TOTAL, RATE, STEPS, DRAWN = sum(COUNTS), 0.1, 5, 3
SHARES = {k: n / TOTAL for k, n in enumerate(COUNTS)}


def federation(rounds: int, per_round: int = 0) -> Federation:
    """Return six unequal clients, all (0) or some of them in a round."""
    s = settings(rounds, STEPS, RATE, len(COUNTS), **{"clients-per-round": per_round})
    return unequal(COUNTS, 2200, s, seed=2)


def weights(taking_part: list[int]) -> dict[int, float]:
    """Return w_k = (K/m) p_k by hand."""
    return {k: len(COUNTS) / len(taking_part) * SHARES[k] for k in taking_part}


def moments(maps: Iterator[Map]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield mean and covariance after each round, given who took part; from a known start."""
    mean, covariance = torch.zeros(2).double(), torch.zeros(2, 2).double()
    for drift, push, noise in maps:
        mean, covariance = drift @ mean + push, drift @ covariance @ drift.T + noise
        yield mean, covariance


def stationary(maps: list[Map], chances: list[float]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the exact mean, the noise's own covariance and that of the means over the draws.

    Each round is one of `maps` by chance: Sigma = E[A Sigma A'] + E[Q] + E[r r'], r what a round
    does to the mean.
    """
    p = torch.tensor(chances).double()
    drifts, pushes, noises = (torch.stack(same) for same in zip(*maps, strict=True))
    eye, average = torch.eye(2).double(), torch.tensordot(p, drifts, 1)
    mean = torch.linalg.solve(eye - average, p @ pushes)
    moved = drifts @ mean + pushes - mean
    remaining = torch.eye(4).double() - sum(
        c * torch.kron(a, a) for c, a in zip(p, drifts, strict=True)
    )
    parts = torch.tensordot(p, noises, 1), (p[:, None] * moved).T @ moved
    noise_part, heat = (torch.linalg.solve(remaining, part.flatten()).view(2, 2) for part in parts)
    return mean, noise_part, heat


def drawn_maps(population: Federation) -> dict[tuple[int, ...], Map]:
    """Return a round's map for each choice of three clients."""
    choices = itertools.combinations(range(len(COUNTS)), DRAWN)
    return {c: round_map(population, weights(list(c)), weights(list(c))) for c in choices}


def draws(population: Federation) -> Iterator[tuple[int, ...]]:
    """Yield who is drawn, round by round."""
    for number in range(1, population.settings.rounds + 1):
        yield tuple(build_server_parts(population.settings).select(number))


def missed(population: Federation, folder: Path, patch: pytest.MonkeyPatch) -> tuple[float, float]:
    """Return by how much the loop's chains miss the exact law given who was drawn."""
    maps = drawn_maps(population)
    expected = moments(maps[choice] for choice in draws(population))
    models = (state.model.view(-1, 2) for state in looped(population, folder))
    samples = [whitened(model, *law) for model, law in zip(models, expected, strict=True)]
    return misses(samples[20::2])


def test_drawn_clients_given_the_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of six, five steps, through the loop: mean within .03 sd, covariance within 3 %."""
    mean, covariance = missed(federation(110, DRAWN), tmp_path, monkeypatch)
    assert mean < 0.03
    assert covariance < 0.03


def test_what_the_draws_add() -> None:
    """Same mean as with all; the noise's part hotter by 4 %, the draws add eta tau N V/2 to 25 %.

    V is the variance of a drawn mean gradient at the posterior's mean. The draws of many rounds
    are as independent, and as even, as the law takes them to be.
    """
    population = federation(4000, DRAWN)
    maps, parts = drawn_maps(population), quadratics(population)
    mean, noise_part, heat = stationary(list(maps.values()), [1 / len(maps)] * len(maps))
    everyone = stationary([round_map(population, SHARES, SHARES)], [1.0])
    torch.testing.assert_close(mean, everyone[0])
    assert (noise_part.diagonal() / everyone[1].diagonal() - 1).abs().max() < 0.04
    target, spread = whole(parts, TOTAL)
    slopes = [
        sum(w * (parts[k].hessian @ target - parts[k].push) for k, w in weights(list(c)).items())
        for c in maps
    ]
    added = heat.diagonal() / spread.diagonal()
    simple = RATE * STEPS * TOTAL / 2 * torch.stack(slopes).square().mean(0)
    torch.testing.assert_close(added, simple, rtol=0.25, atol=0)
    torch.testing.assert_close(added, torch.tensor([0.57, 0.24]).double(), rtol=0, atol=0.005)
    squares = [
        covariance + torch.outer(at - mean, at - mean)
        for at, covariance in moments(maps[choice] for choice in draws(population))
    ]
    average = torch.stack(squares[100:]).mean(0).diagonal()
    torch.testing.assert_close(average, (noise_part + heat).diagonal(), rtol=0.05, atol=0)


def lost(number: int) -> set[int]:
    """Return who is silent in a round: one or two, other ones each time."""
    return {number % 6, (number * number) % 5}


class Nodes:
    """The strategy's messages through the ClientApp of each node, but for those lost."""

    def __init__(self, population: Federation) -> None:
        self.found = population
        state = init_server_state(population.flat.vector)
        self.strategy = PosteriorStrategy(population.settings, state, population.flat.shapes, 0)
        partitions = {100 + k: k for k in SHARES}
        self.strategy.registry = NodeRegistry(partitions, dict(enumerate(COUNTS)))
        self.app = make_client_app(population.settings)

    def get_node_ids(self) -> list[int]:
        """Return all nodes: they answer too late, or not at all, but are connected."""
        return list(self.strategy.registry.partitions)

    def models(self) -> Iterator[tuple[list[int], Tensor]]:
        contexts = {
            node: Context(1, node, {"partition-id": k}, RecordDict(), {})
            for node, k in self.strategy.registry.partitions.items()
        }
        arrays = ArrayRecord(to_arrays(self.strategy.state.model, self.found.flat.shapes))
        for number in range(1, self.found.settings.rounds + 1):
            messages = self.strategy.configure_train(number, arrays, ConfigRecord(), self)
            used = sorted(SHARES.keys() - lost(number))
            to = [(m, m.metadata.dst_node_id) for m in messages]
            replies = [self.app(m, contexts[node]) for m, node in to if node - 100 in used]
            arrays, _ = self.strategy.aggregate_train(number, replies)
            share = self.strategy.report.kept_share
            assert share == pytest.approx(sum(SHARES[k] for k in used))
            yield used, self.strategy.state.model


def missed_by_lost(rounds: int, patch: pytest.MonkeyPatch) -> tuple[float, float]:
    """Return by how much the strategy's chains miss the exact law given who answered."""
    population = federation(rounds)
    patch.setattr(posterior_client, "build_client_parts", lambda settings: client_parts(population))
    patch.setattr(client_app, "select_client_images", lambda s, k: Images(*population.parts[k]))
    patch.setattr(client_app, "build_workspace_net", lambda settings: population.flat)
    with allow_messages():
        used, models = zip(*Nodes(population).models(), strict=True)
    laws = moments(
        round_map(population, {k: SHARES[k] for k in clients}, SHARES) for clients in used
    )
    samples = [whitened(m.view(-1, 2), *law) for m, law in zip(models, laws, strict=True)]
    return misses(samples[20::2])


def test_lost_clients_make_a_shorter_step_at_the_right_heat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One or two of six silent each round, through the strategy: .03 sd, 3 % of the exact law."""
    mean, covariance = missed_by_lost(70, monkeypatch)
    assert mean < 0.03
    assert covariance < 0.03


def test_clients_lost_by_chance_leave_mean_and_heat() -> None:
    """Each silent in 30 % of the rounds: the mean of all, and no more heat than with all.

    Scaled up they would be at 1.7 to 1.9 of the posterior's variance.
    """
    population = federation(1)
    spread = whole(quadratics(population), TOTAL)[1].diagonal()
    everyone = stationary([round_map(population, SHARES, SHARES)], [1.0])
    subsets = [c for m in range(1, 7) for c in itertools.combinations(SHARES, m)]
    chances = [0.7 ** len(c) * 0.3 ** (6 - len(c)) / (1 - 0.3**6) for c in subsets]
    laws = []
    for noisy in (True, False):
        used = [
            dict(zip(c, renormalise_weights(SHARES, list(c), noisy), strict=True)) for c in subsets
        ]
        laws.append(stationary([round_map(population, w, SHARES) for w in used], chances))
    torch.testing.assert_close(laws[0][0], everyone[0])
    assert (laws[0][1].diagonal() < everyone[1].diagonal()).all()
    assert (laws[1][1].diagonal() / spread > 1.7).all()
