"""What every attack that reconstructs images must hold."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import ClassVar
from unittest.mock import patch

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedcel.attacks import ATTACK_CHECKS, Attack, mean_image, mse
from fedcel.data import Images, read_source
from fedcel.leakage import FREE_QUERIES, LOG_PROB, MEAN, NOISELESS, Observation
from fedcel.nets import Cut, SplitNet, initialise_parameters
from fedcel.settings import DataSettings
from fedcel.testing.check_names import name_check

KNOWN, TARGETS, FEATURES = 250, 60, 32
EPOCHS = 12  # of the net to attack
QUICK = 0.1  # share of the effort where the result does not matter
PROGRESS = re.compile(r"(\d+)/(\d+)")
Reconstructions = Float[Tensor, "T C H W"]


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


@cache
def projection() -> Float[Tensor, "64 32"]:
    """Return 32 orthonormal directions, always the same."""
    square = torch.randn(64, 64, generator=torch.Generator().manual_seed(11))
    q: Tensor = torch.linalg.qr(square).Q
    return q[:, :FEATURES]


@cache
def load_digit_targets() -> tuple[Images, Images]:
    """Return the attacker's own digits and the targets, disjoint."""
    x, y = read_source(DataSettings()).train
    last = KNOWN + TARGETS
    return Images(x[:KNOWN], y[:KNOWN]), Images(x[KNOWN:last], y[KNOWN:last])


@cache
def train_undefended(sigma: float = 0.1, layers: int = 2) -> SplitNet:
    """Return a small net for digits, trained without a defence; never write to it.

    Of 32 features, its encoder with one or two layers. It learned from digits that are neither the
    attacker's nor targets.
    """
    x, y = (part[KNOWN + TARGETS :] for part in read_source(DataSettings()).train)
    stream = torch.Generator().manual_seed(7)
    hidden = [nn.Linear(64, 64), nn.ReLU()] if layers == 2 else []
    encoder = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(64, FEATURES))
    net = SplitNet(encoder, nn.Linear(FEATURES, 10), Cut(sigma), FEATURES)
    initialise_parameters(net, stream)
    adam = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(EPOCHS):
        for part in torch.split(torch.randperm(len(y), generator=stream), 64):
            adam.zero_grad()
            smashed = net.add_noise(net.encode(x[part]), stream)
            torch.autograd.backward(cross_entropy(net.answer(smashed), y[part]))
            adam.step()
    return net


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
    _reconstructions: ClassVar[Reconstructions]

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

    def run_attack(self, effort: float = 1.0, lines: list[str] | None = None) -> Reconstructions:
        """Run the attack on the targets.

        Args:
            effort: Share of the suite's budget.
            lines: Gets a line of progress each.

        Returns:
            The reconstructions (T, C, H, W).
        """
        observation = self.observation()
        observed = observation.sample(self.target_images().x, torch.Generator().manual_seed(5))
        return self.build().reconstruct(
            observation,
            load_digit_targets()[0],
            observed,
            self.budget * effort,
            torch.Generator().manual_seed(1),
            None if lines is None else lines.append,
        )

    def reconstruct_targets(self) -> Reconstructions:
        """Run the attack at full effort, once for all tests of a suite.

        Returns:
            The reconstructions (T, C, H, W).
        """
        suite = type(self)
        if "_reconstructions" not in vars(suite):  # a parent's are those of another attack
            suite._reconstructions = self.run_attack()
        return suite._reconstructions

    @pytest.mark.parametrize("check", ATTACK_CHECKS, ids=name_check)
    def test_it_passes_what_every_run_checks(self, check: Callable[[Attack], None]) -> None:
        """The short form of the contract, to which every run holds an attack of your own."""
        check(self.build())

    def test_it_needs_what_is_granted(self) -> None:
        """It is recognised as an attack, and can run on the suite's observation."""
        attack = self.build()
        assert isinstance(attack, Attack)
        assert attack.needs <= self.observation().grants

    def test_it_returns_one_image_per_target(self) -> None:
        """Images have the targets' shape, are finite, in [0, 1], and carry no gradient."""
        images, targets = self.reconstruct_targets(), self.target_images()
        assert images.shape == targets.x.shape
        assert images.isfinite().all()
        assert images.min() >= 0
        assert images.max() <= 1
        assert not images.requires_grad

    def test_far_better_than_the_mean_image(self) -> None:
        """Without a defence it must see a good deal more than the global mean image."""
        auxiliary, targets = load_digit_targets()[0], self.target_images()
        mean_error = mse(mean_image(targets.y, auxiliary), targets.x)
        assert mse(self.reconstruct_targets(), targets.x) < self.share * mean_error

    def test_the_same_seed_gives_the_same_images(self) -> None:
        """The same generator seed gives the same bits, and draws nothing from global streams."""
        before = torch.random.get_rng_state()
        first = self.run_attack(effort=QUICK)
        torch.manual_seed(99)
        second = self.run_attack(effort=QUICK)
        torch.random.set_rng_state(before)
        assert torch.equal(first, second)

    def test_the_attackers_images_are_not_changed(self) -> None:
        """The attacker's images and labels are not written to."""
        copies = [part.clone() for part in load_digit_targets()[0]]
        self.run_attack(effort=QUICK)
        assert all(map(torch.equal, load_digit_targets()[0], copies))

    def test_each_query_draws_its_own_noise(self) -> None:
        """No generator state is used twice: what is trained on one draw knows no other."""
        states: list[bytes] = []
        observation = self.observation()
        original = type(observation).sample

        def sample(self: Observation, images: Tensor, generator: torch.Generator) -> Tensor:
            states.append(generator.get_state().numpy().tobytes())
            return original(self, images, generator)

        with patch.object(type(observation), "sample", sample):
            self.run_attack(effort=QUICK)
        assert NOISELESS in observation.grants or len(set(states)) == len(states)

    def test_a_larger_budget_means_more_work(self) -> None:
        """Progress names the part done as k/n: the last line is at its end, the n follow budget."""
        totals = []
        for effort in (QUICK, 1.0):
            lines: list[str] = []
            self.run_attack(effort=effort, lines=lines)
            steps = [tuple(map(int, pair)) for line in lines for pair in PROGRESS.findall(line)]
            assert steps
            assert steps[-1][0] == steps[-1][1]
            totals.append(sum({total for _, total in steps}))  # one n for each part of the work
        assert totals[1] > totals[0]
