"""Contract of attacks: short trials of reconstruction, beside what every run checks."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, NamedTuple
from unittest.mock import patch

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks import ATTACK_CHECKS, Attack, mean_image, mse
from fedcel.data import Digits, Images, read_source
from fedcel.leakage import FREE_QUERIES, LOG_PROB, MEAN, NOISELESS, Observation
from fedcel.short_repr import show_shapes
from fedcel.testing.check_names import name_check

KNOWN, TARGETS, FEATURES = 250, 60, 32
QUICK = 0.1  # share of the effort where the result does not matter
PROGRESS = re.compile(r"(\d+)/(\d+)")


@dataclass(frozen=True)
class LinearObservation:
    """No defence at all: 32 orthonormal projections of 8x8 digits, Gaussian noise of sd 0.01."""

    name: str
    grants: frozenset[str] = frozenset({MEAN, LOG_PROB, FREE_QUERIES})
    sigma: float = 0.01

    def mean(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B F"]:
        """Return the projections, with a gradient."""
        return torch.mm(images.flatten(1), projection())

    def sample(
        self, images: Float[Tensor, "B C H W"], generator: torch.Generator
    ) -> Float[Tensor, "B F"]:
        """Return the projections with fresh noise."""
        z = self.mean(images)
        return z + self.sigma * torch.randn(z.shape, generator=generator)

    def log_prob(
        self, observed: Float[Tensor, "Q F"], images: Float[Tensor, "M C H W"]
    ) -> Float[Tensor, "Q M"]:
        """Return the Gaussian log-likelihood up to a constant, in nats."""
        scaled = observed.double() / self.sigma, self.mean(images).double() / self.sigma
        return torch.cdist(*scaled).square() / -2


def make_stream(seed: int = 0) -> torch.Generator:
    """Return a generator."""
    return torch.Generator().manual_seed(seed)


@cache
def projection() -> Float[Tensor, "64 32"]:
    """Return 32 orthonormal directions, always the same."""
    square = torch.randn(64, 64, generator=make_stream(11))
    q: Tensor = torch.linalg.qr(square).Q
    return q[:, :FEATURES]


@cache
def load_digit_targets() -> tuple[Images, Images]:
    """Return the attacker's own digits and the targets, disjoint."""
    x, y = read_source(Digits()).train
    last = KNOWN + TARGETS
    return Images(x[:KNOWN], y[:KNOWN]), Images(x[KNOWN:last], y[KNOWN:last])


@show_shapes
class AttackTrial(NamedTuple):
    """Outcome of an attack on the targets.

    Attributes:
        images: The reconstructions (T, C, H, W).
        lines: The lines of progress.
        draws: State of the generator at each query.
    """

    images: Float[Tensor, "T C H W"]
    lines: list[str]
    draws: list[bytes]


class AttackContract:
    """Tests that an attack must pass; see `fedcel.attacks.Attack`.

    Name your subclass `TestMine`, define `build`; pytest runs the rest.

    Attributes:
        budget: Multiplies your attack's effort and keeps the suite short.
        share: The attack's MSE must be below this share of the global mean image's: a weak attack
            passes for privacy. Ridge regression reaches .12 here, the mean of the right class .72.
        targets: Number of images that are attacked.
    """

    budget = 0.3
    share = 0.25
    targets = TARGETS
    _trials: ClassVar[dict[float, AttackTrial]]

    def build(self) -> Attack:
        """Make your attack.

        Returns:
            The attack.
        """
        raise NotImplementedError

    def observation(self) -> Observation:
        """Make what is attacked; override it where your attack needs more than this grants.

        Returns:
            Projections of 8x8 digits with a little noise, no defence.
        """
        return LinearObservation(self.build().observes)

    def target_images(self) -> Images:
        """Select the images that are to be reconstructed.

        Returns:
            The targets, with labels.
        """
        return Images(*(part[: self.targets] for part in load_digit_targets()[1]))

    def run_attack(self, effort: float = 1.0, *, is_silent: bool = False) -> AttackTrial:
        """Run the attack on the targets.

        Args:
            effort: Share of the suite's budget.
            is_silent: Whether nobody listens to its progress.

        Returns:
            What came of it.
        """
        observation, lines, draws = self.observation(), list[str](), list[bytes]()
        original = type(observation).sample

        def sample(self: Observation, images: Tensor, generator: torch.Generator) -> Tensor:
            draws.append(generator.get_state().numpy().tobytes())
            return original(self, images, generator)

        auxiliary, budget = load_digit_targets()[0], self.budget * effort
        copies = [part.clone() for part in auxiliary]
        with patch.object(type(observation), "sample", sample):
            observed = observation.sample(self.target_images().x, make_stream(5))
            images = self.build().reconstruct(
                *(observation, auxiliary, observed, budget, make_stream(1)),
                None if is_silent else lines.append,
            )
        assert all(map(torch.equal, auxiliary, copies)), "the attacker's own images were written to"
        return AttackTrial(images, lines, draws)

    def try_attack(self, effort: float = 1.0) -> AttackTrial:
        """Run the attack once for all tests of a suite; see `run_attack`."""
        suite = type(self)
        if "_trials" not in vars(suite):  # a parent's are those of another attack
            suite._trials = {}
        if effort not in suite._trials:
            suite._trials[effort] = self.run_attack(effort)
        return suite._trials[effort]

    @pytest.mark.parametrize("check", ATTACK_CHECKS, ids=name_check)
    def test_contract(self, check: Callable[[Attack], None]) -> None:
        """Each line to which every run holds an attack of your own."""
        check(self.build())

    def test_it_needs_what_is_granted(self) -> None:
        """It is recognised as an attack, and can run on the suite's observation."""
        attack = self.build()
        assert isinstance(attack, Attack)
        assert attack.needs <= self.observation().grants

    def test_it_returns_one_image_per_target(self) -> None:
        """Images have the targets' shape, are finite, in [0, 1], and carry no gradient."""
        images = self.try_attack().images
        assert images.shape == self.target_images().x.shape
        assert images.isfinite().all()
        assert images.min() >= 0
        assert images.max() <= 1
        assert not images.requires_grad

    def test_far_better_than_the_mean_image(self) -> None:
        """Without a defence it must see a good deal more than the global mean image."""
        auxiliary, targets = load_digit_targets()[0], self.target_images()
        mean_error = mse(mean_image(targets.y, auxiliary), targets.x)
        assert mse(self.try_attack().images, targets.x) < self.share * mean_error

    def test_the_same_seed_gives_the_same_images(self) -> None:
        """The same generator seed gives the same bits, and draws nothing from global streams."""
        first = self.try_attack(QUICK).images
        before = torch.random.get_rng_state()
        torch.manual_seed(99)
        second = self.run_attack(QUICK, is_silent=True).images
        torch.random.set_rng_state(before)
        assert torch.equal(first, second)

    def test_each_query_draws_its_own_noise(self) -> None:
        """No generator state is used twice: what is trained on one draw knows no other."""
        draws = self.try_attack(QUICK).draws
        assert NOISELESS in self.observation().grants or len(set(draws)) == len(draws)

    def test_a_larger_budget_means_more_work(self) -> None:
        """Progress names the part done as k/n: the last line is at its end, the n follow budget."""
        totals = []
        for effort in (QUICK, 1.0):
            lines = self.try_attack(effort).lines
            steps = [tuple(map(int, pair)) for line in lines for pair in PROGRESS.findall(line)]
            assert steps
            assert steps[-1][0] == steps[-1][1]
            totals.append(sum({total for _, total in steps}))  # one n for each part of the work
        assert totals[1] > totals[0]
