"""What every attack that reconstructs images must hold."""

import re
from dataclasses import dataclass
from functools import cache
from typing import ClassVar
from unittest.mock import patch

import torch
from jaxtyping import Float
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedcel.attacks import Attack, mean_image, mse
from fedcel.data import Images
from fedcel.leakage import FREE_QUERIES, LOG_PROB, MEAN, NOISELESS, Observation
from fedcel.nets import Cut, SplitNet, initialise_parameters

KNOWN, TARGETS, FEATURES = 250, 60, 32
EPOCHS = 12  # of the net to attack
QUICK = 0.1  # share of the effort where the result does not matter
PART = re.compile(r"(\d+)/(\d+)")
Made = Float[Tensor, "T C H W"]


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
    data = load_digits()
    x = torch.from_numpy(data.images).float()[:, None] / 16
    y = torch.from_numpy(data.target).long()
    last = KNOWN + TARGETS
    return Images(x[:KNOWN], y[:KNOWN]), Images(x[KNOWN:last], y[KNOWN:last])


@cache
def train_undefended(sigma: float = 0.1, layers: int = 2) -> SplitNet:
    """Return a small net for digits, trained without a defence; never write to it.

    Of 32 features, its encoder with one or two layers. It learned from digits that are neither the
    attacker's nor targets.
    """
    data = load_digits()
    last = KNOWN + TARGETS
    x = torch.from_numpy(data.images[last:]).float()[:, None] / 16
    y = torch.from_numpy(data.target[last:]).long()
    stream = torch.Generator().manual_seed(7)
    deep = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, FEATURES)]
    encoder = nn.Sequential(nn.Flatten(), *(deep if layers == 2 else [nn.Linear(64, FEATURES)]))
    net = SplitNet(encoder, nn.Linear(FEATURES, 10), Cut(sigma), FEATURES)
    initialise_parameters(net, stream)
    adam = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(EPOCHS):
        for part in torch.split(torch.randperm(len(y), generator=stream), 64):
            adam.zero_grad()
            message = net.add_noise(net.encode(x[part]), stream)
            torch.autograd.backward(cross_entropy(net.answer(message), y[part]))
            adam.step()
    return net


class AttackContract:
    """Name your subclass `TestMine`, define `build`; pytest runs the rest.

    `budget` multiplies your attack's effort and keeps the suite short. `share` is the part of the
    global mean image's MSE that must be beaten: a weak attack passes for privacy. Ridge regression
    reaches .12 here, the mean of the right class .72. `targets` is the number of images attacked.
    Where your attack needs more than `LinearObservation` grants, return an observation of your own.
    """

    budget = 0.3
    share = 0.25
    targets = TARGETS
    made: ClassVar[Made]

    def build(self) -> Attack:
        """Return your attack."""
        raise NotImplementedError

    def observation(self) -> Observation:
        """Return what is attacked."""
        return LinearObservation(self.build().observes)

    def truth(self) -> Images:
        """Return the targets."""
        return Images(*(part[: self.targets] for part in load_digit_targets()[1]))

    def attack(self, seed: int = 1, effort: float = 1.0, lines: list[str] | None = None) -> Made:
        """Return the reconstructions of the targets; progress goes to `lines`."""
        observation = self.observation()
        observed = observation.sample(self.truth().x, torch.Generator().manual_seed(5))
        return self.build().reconstruct(
            observation,
            load_digit_targets()[0],
            observed,
            self.budget * effort,
            torch.Generator().manual_seed(seed),
            None if lines is None else lines.append,
        )

    def full(self) -> Made:
        """Return the reconstructions at full effort, made once for all tests of a suite."""
        kind = type(self)
        if "made" not in vars(kind):  # a parent's are those of another attack
            kind.made = self.attack()
        return kind.made

    def test_declares_itself(self) -> None:
        """It has a name, names what it observes, and is recognised as an attack."""
        attack = self.build()
        assert isinstance(attack, Attack)
        assert attack.name
        assert attack.observes
        assert attack.needs <= self.observation().grants

    def test_one_image_per_target(self) -> None:
        """Images have the targets' shape, are finite, in [0, 1], and carry no gradient."""
        images, targets = self.full(), self.truth()
        assert images.shape == targets.x.shape
        assert images.isfinite().all()
        assert images.min() >= 0
        assert images.max() <= 1
        assert not images.requires_grad

    def test_far_better_than_the_mean_image(self) -> None:
        """Without a defence it must see a good deal more than the global mean image."""
        known, targets = load_digit_targets()[0], self.truth()
        guess = mse(mean_image(targets.y, known), targets.x)
        assert mse(self.full(), targets.x) < self.share * guess

    def test_repeatable(self) -> None:
        """The same generator seed gives the same bits, and draws nothing from global streams."""
        before = torch.random.get_rng_state()
        first = self.attack(effort=QUICK)
        torch.manual_seed(99)
        second = self.attack(effort=QUICK)
        torch.random.set_rng_state(before)
        assert torch.equal(first, second)

    def test_own_images_are_left_alone(self) -> None:
        """The attacker's images and labels are not written to."""
        copies = [part.clone() for part in load_digit_targets()[0]]
        self.attack(effort=QUICK)
        assert all(map(torch.equal, load_digit_targets()[0], copies))

    def test_each_query_draws_its_own_noise(self) -> None:
        """No generator state is used twice: what is trained on one draw knows no other."""
        states: list[bytes] = []
        observation = self.observation()
        real = type(observation).sample

        def sample(seen: Observation, images: Tensor, generator: torch.Generator) -> Tensor:
            states.append(generator.get_state().numpy().tobytes())
            return real(seen, images, generator)

        with patch.object(type(observation), "sample", sample):
            self.attack(effort=QUICK)
        assert NOISELESS in observation.grants or len(set(states)) == len(states)

    def test_budget_scales_the_effort(self) -> None:
        """Progress names the part done as k/n: the last line is at its end, the n follow budget."""
        totals = []
        for effort in (QUICK, 1.0):
            lines: list[str] = []
            self.attack(effort=effort, lines=lines)
            parts = [tuple(map(int, found)) for line in lines for found in PART.findall(line)]
            assert parts
            assert parts[-1][0] == parts[-1][1]
            totals.append(sum({total for _, total in parts}))  # one n for each part of the work
        assert totals[1] > totals[0]
