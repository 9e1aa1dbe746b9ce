"""Noise for a wanted leak: closed forms, the conditions of the optimum, and refusals."""

from importlib import import_module
from math import sqrt
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedcel.errors import NetError
from fedcel.leakage import calibrate_noise, fit_image_prior, measure_linearised
from fedcel.leakage.calibrate_noise import (
    LeakTarget,
    differentiate_bits,
    differentiate_error,
    spread_noise,
)
from fedcel.leakage.linearised import linearise
from fedcel.leakage.noisy_head import measure_sensitivity
from tests.fedcel.leakage.test_linearised import (
    VALUES,
    bent_net,
    draw_images,
    linear_net,
)

IMAGES = draw_images(300)
PRIOR = fit_image_prior(IMAGES)


def eigen_net(strengths: list[float]) -> nn.Sequential:
    """Encoder whose features are independent: feature i has the signal variance strengths[i]."""
    order = PRIOR.variances.argsort(descending=True)[: len(strengths)]
    units = torch.zeros(len(strengths), VALUES, dtype=torch.float64)
    units[torch.arange(len(strengths)), order] = 1 / PRIOR.variances[order].sqrt()
    rows = PRIOR.from_coefficients(units).flatten(1)
    net = nn.Sequential(nn.Flatten(), nn.Linear(VALUES, len(strengths), bias=False)).double()
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor(strengths).double().sqrt()[:, None] * rows)
    return net


@pytest.mark.parametrize("bits", [0.01, 0.5, 3, 40])
def test_one_feature_by_hand(bits: float) -> None:
    """1/2 log2(1 + k / s^2) = B has s^2 = k / (4^B - 1)."""
    noise, leak = calibrate_noise(eigen_net([2.0]), IMAGES, prior=PRIOR, target_bits=bits)
    assert noise == pytest.approx(sqrt(2 / (4**bits - 1)), rel=1e-9)
    assert leak.bits == pytest.approx(bits, rel=1e-9) and leak.bits <= bits


def test_an_error_by_hand() -> None:
    """The posterior variance along the feature is c s^2 / (s^2 + k), the rest stays unknown."""
    c = float(PRIOR.variances.max())
    missing = 0.3 * c / VALUES  # error that the message takes off
    noise, leak = calibrate_noise(
        eigen_net([2.0]), IMAGES, prior=PRIOR, target_mse=PRIOR.variance - missing
    )
    assert noise == pytest.approx(sqrt(2 * 0.7 / 0.3), rel=1e-9)
    assert leak.mmse == pytest.approx(PRIOR.variance - missing, rel=1e-9)


@pytest.mark.parametrize("features", [6, 2 * VALUES])
def test_tighter_targets_need_more_noise(features: int) -> None:
    """Of a net with bends, too; each target is met, and hardly more than met."""
    net = bent_net(2, features)
    noises = []
    for bits in (0.5, 2, 8, 20):
        noise, leak = calibrate_noise(net, IMAGES, prior=PRIOR, target_bits=bits)
        again = measure_linearised(net, IMAGES, noise=noise, prior=PRIOR)
        assert leak.bits == pytest.approx(bits, rel=1e-9)
        for name in ("mmse", "bound", "dfil", "fsinfo", "bits_half_width", "bound_half_width"):
            assert getattr(leak, name) == pytest.approx(getattr(again, name), rel=1e-6)
        noises.append(noise)
    assert noises == sorted(noises, reverse=True)
    floor = measure_linearised(net, IMAGES, noise=1e-9, prior=PRIOR).mmse
    shares = (0.3, 0.6, 0.9)
    errors = [floor + share * (PRIOR.variance - floor) for share in shares]
    found = [calibrate_noise(net, IMAGES, prior=PRIOR, target_mse=error) for error in errors]
    assert [leak.mmse for _, leak in found] == pytest.approx(errors, rel=1e-9)
    assert found[0].noise < found[1].noise < found[2].noise


def test_messages_together_meet_a_target() -> None:
    """Four messages need twice the noise of one."""
    net = bent_net(2)
    one = calibrate_noise(net, IMAGES, prior=PRIOR, target_bits=3)
    four = calibrate_noise(net, IMAGES, prior=PRIOR, target_bits=3, messages=4)
    assert four.noise == pytest.approx(2 * one.noise)
    assert four.leak.messages == 4 and four.leak.bits == pytest.approx(3)
    assert four.leak.sequences[1].bits == pytest.approx(3)


def test_the_encoder_is_linearised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target takes as many channels as a measurement with known noise."""
    module = import_module("fedcel.leakage.linearised")
    made = 0

    class Counted(module.LocalChannel):  # type: ignore[name-defined, misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            nonlocal made
            made += 1
            super().__init__(*arguments, **options)

    monkeypatch.setattr(module, "LocalChannel", Counted)
    net = bent_net(2)
    measure_linearised(net, IMAGES, noise=0.1, prior=PRIOR)
    once, made = made, 0
    calibrate_noise(net, IMAGES, prior=PRIOR, target_bits=3)
    assert made == once > 0


def test_independent_features_by_hand() -> None:
    """Each variance solves s (s + k) = m k, with m such that the bits are met."""
    strengths = [4.0, 2.0, 1.0, 0.5]
    found = calibrate_noise(
        eigen_net(strengths), IMAGES, prior=PRIOR, target_bits=2, per_feature=True
    )
    assert isinstance(found.noise, Tensor)
    k = torch.tensor(strengths).double()

    def variances(m: float) -> Tensor:
        return (-k + (k * k + 4 * m * k).sqrt()) / 2

    low, high = 1e-6, 1e6
    for _ in range(200):
        middle = sqrt(low * high)
        bits = float((1 + k / variances(middle)).log2().sum()) / 2
        low, high = (middle, high) if bits > 2 else (low, middle)
    torch.testing.assert_close(found.noise.square(), variances(high), rtol=1e-3, atol=0)
    assert found.leak.bits == pytest.approx(2, rel=1e-9)


@pytest.mark.parametrize("target", [LeakTarget(bits=3), LeakTarget(mse=0.8 * PRIOR.variance)])
@pytest.mark.parametrize("features", [6, 2 * VALUES])
def test_conditions_of_the_optimum(features: int, target: LeakTarget) -> None:
    """A unit of harm buys the same leak at each feature, but at the ends of its range."""
    net = bent_net(3, features)
    channels = linearise(net, IMAGES, noise=1.0, prior=PRIOR, has_jacobians=True)
    harms = 1 + 3 * torch.rand(features, generator=torch.Generator().manual_seed(0)).double()
    one = calibrate_noise(
        net, IMAGES, prior=PRIOR, target_bits=target.bits, target_mse=target.mse
    ).noise
    assert isinstance(one, float)
    noise = spread_noise(channels, target, harms, one)
    leak = measure_linearised(net, IMAGES, noise=noise, prior=PRIOR)
    if target.bits is not None:
        assert leak.bits == pytest.approx(target.bits, rel=1e-6)
    else:
        assert leak.mmse == pytest.approx(target.mse, rel=1e-6)
    variances = noise.square()
    assert float((harms * variances).sum()) < float(harms.sum()) * one**2
    assert channels.jacobians is not None
    differentiate = differentiate_error if target.bits is None else differentiate_bits
    root = PRIOR.variances.sqrt()
    slopes = torch.stack(
        [differentiate(part * root, 1 / variances, root)[1] for part in channels.jacobians]
    ).mean(0)
    prices = slopes / variances.square() / harms
    inside = (noise > 0.1001 * one) & (noise < 9.99 * one)
    assert inside.sum() >= features / 2
    assert float(prices[inside].max() / prices[inside].min()) < 1.01


@pytest.mark.parametrize("differentiate", [differentiate_bits, differentiate_error])
@pytest.mark.parametrize("features", [5, 12])
def test_slopes_are_derivatives(differentiate: Any, features: int) -> None:
    """By central differences of the value."""
    generator = torch.Generator().manual_seed(0)
    scaled = torch.randn(features, 8, generator=generator).double()
    root = torch.rand(8, generator=generator).double()
    precisions = 0.2 + torch.rand(features, generator=generator).double()
    value, slopes = differentiate(scaled, precisions, root)
    gram = torch.eye(8).double() + scaled.T @ (precisions[:, None] * scaled)
    if differentiate is differentiate_bits:
        assert value == pytest.approx(float(gram.logdet()) / 2)
    else:
        left = torch.linalg.solve(gram, torch.diag(root)) * root[:, None]
        assert value == pytest.approx(float(root.square().sum() - left.trace()))
    for place in range(features):
        step = torch.zeros_like(precisions)
        step[place] = 1e-6
        ends = [differentiate(scaled, precisions + sign * step, root)[0] for sign in (1, -1)]
        assert float(slopes[place]) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5)


def test_a_head_decides_where_noise_does_harm() -> None:
    """A feature that the answer ignores gets all the noise that it may; bits are met."""
    net = linear_net(features=4)
    head = nn.Linear(4, 3).double()
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[8.0, 0, 4, 0], [-8, 0, 0, 0], [0, 0, -4, 0]]))
    plain, told = (
        calibrate_noise(net, IMAGES, prior=PRIOR, target_bits=4, per_feature=True, head=part).noise
        for part in (None, head)
    )
    one = calibrate_noise(net, IMAGES, prior=PRIOR, target_bits=4).noise
    assert isinstance(plain, Tensor) and isinstance(told, Tensor) and isinstance(one, float)
    torch.testing.assert_close(told[[1, 3]], torch.full((2,), 10 * one).double())
    assert (told[[0, 2]] < plain[[0, 2]]).all()


def test_sensitivity_of_a_linear_head() -> None:
    """The diagonal of W^T (diag p - p p^T) W, mean over images."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(400, 5, generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head = nn.Linear(5, 4)
    with torch.no_grad():
        chances = head(features).softmax(1)
        weight = head.weight
    spread = torch.diag_embed(chances) - chances[:, :, None] * chances[:, None]
    truth = torch.einsum("ki,nkl,li->i", weight, spread, weight) / len(features)
    found = measure_sensitivity(head, features, shape=(5,))
    torch.testing.assert_close(found.float(), truth.detach(), rtol=0.1, atol=0)


class Pair(nn.Module):
    """Encoder of two outputs."""

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the halves of an image."""
        return list(x.flatten(1).chunk(2, 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "neither is given"),
        ({"target_bits": 1, "target_mse": 0.1}, "both are given"),
        ({"target_bits": -1}, "target bits is -1"),
        ({"target_mse": 0}, "target MSE is 0"),
        ({"target_bits": 1e6}, r"must be below \d+(\.\d+)?, which one message tells"),
        ({"target_mse": 1.0}, r"must be below 0\.\d+: who gets no message"),
        ({"target_mse": 1e-9}, r"must be above 0\.\d+: one message without noise leaves"),
        ({"target_bits": 1, "head": nn.Linear(6, 2)}, "leave it out"),
        ({"target_bits": 1, "messages": 0}, "messages is 0"),
        ({"target_bits": 1, "prior": PRIOR, "labels": torch.zeros(300).long()}, "beside a prior"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    """Each with its value and the nearest that is possible."""
    with pytest.raises(ValueError, match=message):
        calibrate_noise(linear_net(), IMAGES, **options)


def test_encoders_that_no_target_is_found_for() -> None:
    """One that tells nothing, one without a gradient, one too wide, one of two outputs."""
    with pytest.raises(ValueError, match="must be below 0, which one message tells"):
        calibrate_noise(lambda x: 0 * x.flatten(1), IMAGES, target_bits=1)
    with pytest.raises(NetError, match="without a gradient"):
        calibrate_noise(lambda x: x.detach().flatten(1), IMAGES, target_bits=1)
    large = draw_images(12, shape=(1, 8, 8)).float().repeat(1, 1, 10, 10)
    with pytest.raises(ValueError, match="give one noise for all"):
        calibrate_noise(nn.Flatten(), large, target_bits=1, per_feature=True)
    options: dict[str, Any] = {"target_bits": 1, "per_feature": True, "head": nn.Linear(8, 2)}
    with pytest.raises(NetError, match="no single tensor"):
        calibrate_noise(Pair(), IMAGES, **options)


def test_large_images_by_lanczos() -> None:
    """The estimate meets the target where Jacobians are not computed."""
    shape = (1, 80, 80)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(1, 2, 4, 4), nn.Flatten())
    images = nn.functional.interpolate(draw_images(12, shape=(1, 8, 8)), shape[1:])
    noise, leak = calibrate_noise(net, images.float(), target_bits=5, count=4)
    assert leak.estimator == "lanczos" and leak.bits == pytest.approx(5)
    again = measure_linearised(net, images.float(), noise=noise, count=4)
    assert again.bits == pytest.approx(5, rel=0.05)
    noise, leak = calibrate_noise(net, images.float(), target_mse=0.5 * leak.mmse, count=4)
    again = measure_linearised(net, images.float(), noise=noise, count=4)
    assert again.mmse == pytest.approx(leak.mmse, rel=0.05)
