"""Noise of each feature: of a wanted leak, in closed form, and the reward of noise."""

import math

import pytest
import torch
from torch import Tensor, nn

from fedcel.leakage import fit_image_prior, measure_linearised
from fedcel.losses.defences import FisherNoise, LearnedNoise
from fedcel.losses.defences.feature_noise import signal_to_noise, variance_within_classes
from fedcel.nets import NOISE_LIMIT
from fedcel.posterior import RoundOrder
from fedcel.run_parts import build_schedule, build_workspace_net
from fedcel.settings import parse_settings
from tests.fedcel.losses.single import bind_rival

SIGMA, BITS = 0.3, 3.0


def wanted_scale(z: Tensor, y: Tensor, bits: float = BITS) -> Tensor:
    """Standard deviations of the closed form, in units of sigma."""
    variance = variance_within_classes(z, y, 3)
    return (variance / signal_to_noise(bits, z.shape[-1])).sqrt() / SIGMA


def test_independent_features_tell_the_wanted_bits() -> None:
    """D/2 log2(1 + ratio), and so does a linear channel of an orthonormal encoder.

    Its images have independent pixels; of dependent ones a message tells less.
    """
    ratio = signal_to_noise(BITS, 6)
    assert 6 / 2 * math.log2(1 + ratio) == pytest.approx(BITS, abs=1e-12)
    generator = torch.Generator().manual_seed(0)
    spread = torch.linspace(0.02, 0.4, 6)
    labels = torch.arange(3000) % 3
    images = torch.randn(3000, 6, generator=generator) * spread + 2.0 * labels[:, None]
    prior = fit_image_prior(images.double(), labels)
    noise = SIGMA * wanted_scale(images, labels)
    leak = measure_linearised(nn.Identity(), images, noise=noise, prior=prior)
    assert leak.bits == pytest.approx(BITS, rel=1e-3)
    mixing = torch.randn(6, 6, generator=generator) / 2
    mixed = images @ mixing
    prior = fit_image_prior(mixed.double(), labels)
    noise = SIGMA * wanted_scale(mixed, labels)
    assert measure_linearised(nn.Identity(), mixed, noise=noise, prior=prior).bits < BITS


def test_variance_by_hand() -> None:
    """Two classes of two, pooled over two degrees of freedom; a single image has no spread."""
    z = torch.tensor([[0.0, 1.0], [2.0, 1.0], [5.0, 0.0], [5.0, 4.0], [9.0, 9.0]])
    y = torch.tensor([0, 0, 1, 1, 2])
    torch.testing.assert_close(variance_within_classes(z, y, 3), torch.tensor([1.0, 4.0]))
    alone = variance_within_classes(z[:1], y[:1], 3)
    assert torch.equal(alone, torch.zeros(2))


def test_the_loss_is_least_at_the_closed_form() -> None:
    """0 there; by hand elsewhere; its gradient reaches the noise only."""
    z = torch.rand(12, 4, generator=torch.Generator().manual_seed(1)).requires_grad_()
    y = torch.arange(12) % 3
    defence = bind_rival(FisherNoise(strength=BITS), sigma=SIGMA)
    scale = wanted_scale(z.detach(), y).expand(12, 4)
    least = defence.law_loss({}, z, scale, y=y).loss
    torch.testing.assert_close(least, torch.tensor(0.0), atol=1e-10, rtol=0)
    moved = (scale * math.e).detach().requires_grad_()
    term = defence.law_loss({}, z, moved, y=y)
    torch.testing.assert_close(term.loss, torch.tensor(2.0))
    torch.testing.assert_close(term.metrics["noise-scale"], moved.detach().log().mean().exp())
    of_features, of_noise = torch.autograd.grad(term.loss, (z, moved), allow_unused=True)
    assert of_features is None
    torch.testing.assert_close(of_noise, 1 / (12 * moved.detach()))


def test_a_dead_feature_gets_the_least_noise() -> None:
    """Its variance is 0, and so is what it tells: the loss and its gradient stay finite."""
    z = torch.full((4, 4), 0.5)
    defence = bind_rival(FisherNoise(), sigma=SIGMA)
    scale = torch.full((4, 4), 1 / NOISE_LIMIT, requires_grad=True)
    loss = defence.law_loss({}, z, scale, y=torch.zeros(4, dtype=torch.long)).loss
    (gradient,) = torch.autograd.grad(loss, scale)
    torch.testing.assert_close(loss.detach(), torch.tensor(0.0), atol=1e-10, rtol=0)
    assert gradient.isfinite().all()


def test_several_clients_at_once() -> None:
    """A loss each."""
    generator = torch.Generator().manual_seed(2)
    z, scale = torch.rand(2, 3, 9, 4, generator=generator) + 0.1
    y = torch.arange(27).view(3, 9) % 3
    defence = bind_rival(FisherNoise(), sigma=SIGMA)
    together = defence.law_loss({}, z, scale, y=y, measure=False)
    alone = [
        defence.law_loss({}, *parts[:2], y=parts[2]).loss for parts in zip(z, scale, y, strict=True)
    ]
    torch.testing.assert_close(together.loss, torch.stack(alone))
    assert together.metrics == {}


def test_the_weight_is_no_strength() -> None:
    """The strength is in bits; the weight says how fast the noise gets there."""
    assert FisherNoise(strength=8).weight == FisherNoise(strength=1).weight


def test_strength_0_only_learns_the_noise() -> None:
    """No term acts, and each feature has its own standard deviation."""
    s = parse_settings({"defence.name": "learned-noise", "defence.strength": 0})
    assert build_workspace_net(s).net.noise_shape == "feature"
    assert build_schedule(s).plan(RoundOrder(60, 100)).terms == ()


def test_the_reward_of_noise_by_hand() -> None:
    """Scales 1, 2 and 1/2, 4: minus the mean of log 2 and log 2; the geometric mean is sqrt 2."""
    scale = torch.tensor([[1.0, 2.0], [0.5, 4.0]], requires_grad=True)
    term = bind_rival(LearnedNoise()).law_loss(
        {}, torch.zeros(2, 2), scale, y=torch.zeros(2, dtype=torch.long)
    )
    torch.testing.assert_close(term.loss, torch.tensor(-math.log(2)))
    torch.testing.assert_close(term.metrics["noise-scale"], torch.tensor(2**0.5))
    (gradient,) = torch.autograd.grad(term.loss, scale)
    torch.testing.assert_close(gradient, -1 / (2 * scale.detach()))


def test_rewards_of_several_clients_at_once() -> None:
    """A loss each; nothing is kept, nothing measured that is not asked for."""
    scale = torch.rand(3, 4, 2, generator=torch.Generator().manual_seed(1)) + 0.1
    labels = torch.zeros(3, 4, dtype=torch.long)
    mine = bind_rival(LearnedNoise())
    together = mine.law_loss({}, torch.zeros(3, 4, 2), scale, y=labels, measure=False)
    alone = [
        mine.law_loss({}, torch.zeros(4, 2), row, y=labels[0], measure=False).loss for row in scale
    ]
    torch.testing.assert_close(together.loss, torch.stack(alone))
    assert together.metrics == {}
    assert mine.update(mine.refresh(None, torch.Generator())) == {}
