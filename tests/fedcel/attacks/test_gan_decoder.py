"""The decoder with a critic."""

import pytest
import torch

from fedcel.attacks.attack import Attack
from fedcel.attacks.gan_decoder import GANDecoder, build_critic, gradient_penalty
from fedcel.testing.attacks import AttackContract


def stream(seed: int = 0) -> torch.Generator:
    """Return a generator."""
    return torch.Generator().manual_seed(seed)


class TestGAN(AttackContract):
    """The built-in one, briefly and with few steps of the critic."""

    budget = 0.3
    share = 0.7

    def build(self) -> Attack:
        """Return it."""
        return GANDecoder(critic_steps=2)


class Still(AttackContract):
    """A generator that never learns."""

    budget = 0.05

    def build(self) -> Attack:
        """Return it."""
        return GANDecoder(critic_steps=1, rate=0.0)


def test_contract_catches_a_generator_that_never_learns() -> None:
    """What learns nothing must not pass for privacy."""
    with pytest.raises(AssertionError):
        Still().test_far_better_than_the_mean_image()


@pytest.mark.parametrize("slope", [0.0, 1.0, 3.0])
def test_penalty_of_a_linear_critic(slope: float) -> None:
    """The gradient's norm is the slope everywhere: (slope - 1)^2."""
    direction = torch.zeros(4)
    direction[1] = slope
    real, fake = (torch.rand(5, 1, 2, 2, generator=stream(seed)) for seed in (1, 2))
    linear = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 1))
    linear[1].weight.data.copy_(direction[None])
    penalty = gradient_penalty(linear, real, fake, stream())
    assert penalty.item() == pytest.approx((slope - 1) ** 2, abs=1e-5)


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32)])
def test_critics_fit_the_images(shape: tuple[int, ...]) -> None:
    """One number an image, the same for the same generator."""
    x = torch.rand(3, *shape, generator=stream())
    one, two = (build_critic(shape, stream(1)) for _ in range(2))
    assert one(x).shape == (3, 1)
    assert torch.equal(one(x), two(x))
