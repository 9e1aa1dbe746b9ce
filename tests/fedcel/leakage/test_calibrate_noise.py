"""Noise for a wanted leak: closed forms, and refusals."""

from importlib import import_module
from math import sqrt
from typing import Any

import pytest
import torch
from torch import nn

from fedcel.errors import NetError
from fedcel.leakage import calibrate_noise, fit_image_prior, measure_linearised
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
        ({"target_bits": 1, "prior": PRIOR, "labels": torch.zeros(300).long()}, "beside a prior"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    """Each with its value and the nearest that is possible."""
    with pytest.raises(ValueError, match=message):
        calibrate_noise(linear_net(), IMAGES, **options)


def test_encoders_that_no_target_is_found_for() -> None:
    """One that tells nothing, and one without a gradient."""
    with pytest.raises(ValueError, match="must be below 0, which one message tells"):
        calibrate_noise(lambda x: 0 * x.flatten(1), IMAGES, target_bits=1)
    with pytest.raises(NetError, match="without a gradient"):
        calibrate_noise(lambda x: x.detach().flatten(1), IMAGES, target_bits=1)


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
