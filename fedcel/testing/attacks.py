"""What every attack that reconstructs images must hold."""

from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float
from sklearn.datasets import load_digits
from torch import Tensor

from fedcel.attacks.base import Attack
from fedcel.attacks.observation import FREE_QUERIES, LOG_PROB, MEAN
from fedcel.attacks.scorecard import mean_image, mse
from fedcel.data.images import Images

KNOWN, TARGETS, FEATURES = 250, 60, 32


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
def digits() -> tuple[Images, Images]:
    """Return the attacker's own digits and the targets, disjoint."""
    data = load_digits()
    x = torch.from_numpy(data.images).float()[:, None] / 16
    y = torch.from_numpy(data.target).long()
    last = KNOWN + TARGETS
    return Images(x[:KNOWN], y[:KNOWN]), Images(x[KNOWN:last], y[KNOWN:last])


class AttackContract:
    """Name your subclass `TestMine`, define `build`; pytest runs the rest.

    `budget` multiplies your attack's effort and keeps the suite short. `share` is the part of the
    global mean image's MSE that must be beaten: a weak attack passes for privacy.
    """

    budget = 0.3
    share = 0.5

    def build(self) -> Attack:
        """Return your attack."""
        raise NotImplementedError

    def attack(self, seed: int = 1) -> Float[Tensor, "T C H W"]:
        """Return the reconstructions of the targets."""
        attack, (known, targets) = self.build(), digits()
        observation = LinearObservation(attack.observes)
        observed = observation.sample(targets.x, torch.Generator().manual_seed(5))
        stream = torch.Generator().manual_seed(seed)
        return attack.reconstruct(observation, known.x, observed, self.budget, stream)

    def test_declares_itself(self) -> None:
        """It has a name, names what it observes, and is recognised as an attack."""
        attack = self.build()
        assert isinstance(attack, Attack)
        assert attack.name
        assert attack.observes
        assert all(isinstance(need, str) for need in attack.needs)

    def test_one_image_per_target(self) -> None:
        """Images have the targets' shape, are finite, in [0, 1], and carry no gradient."""
        images, targets = self.attack(), digits()[1]
        assert images.shape == targets.x.shape
        assert images.isfinite().all()
        assert images.min() >= 0
        assert images.max() <= 1
        assert not images.requires_grad

    def test_far_better_than_the_mean_image(self) -> None:
        """Without a defence it must see a good deal more than the global mean image."""
        known, targets = digits()
        guess = mse(mean_image(targets.y, known), targets.x)
        assert mse(self.attack(), targets.x) < self.share * guess

    def test_repeatable(self) -> None:
        """The same generator seed gives the same bits, and draws nothing from global streams."""
        before = torch.random.get_rng_state()
        first = self.attack()
        torch.manual_seed(99)
        second = self.attack()
        torch.random.set_rng_state(before)
        assert torch.equal(first, second)

    def test_own_images_are_left_alone(self) -> None:
        """The attacker's images and what he observed are not written to."""
        known = digits()[0]
        copy = known.x.clone()
        self.attack()
        assert torch.equal(known.x, copy)
