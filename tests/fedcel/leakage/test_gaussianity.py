"""Gaussianity of messages against closed forms, and the identity that ties it to the leak."""

from math import log, log2

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from torch import nn

from fedcel.leakage import SmashedData, optimal_leak
from fedcel.leakage.gaussianity import gaussianity, negentropy, principal_components
from fedcel.nets.cut import Cut
from fedcel.nets.split_net import SplitNet


def normal(count: int, features: int, seed: int = 0) -> torch.Tensor:
    """Return standard normal codes."""
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(count, features, generator=stream, dtype=torch.float64)


def one(count: int) -> torch.Tensor:
    """Return labels of one class."""
    return torch.zeros(count, dtype=torch.long)


def test_one_code_is_exactly_gaussian() -> None:
    """Equal codes: the message is N(z, sigma^2 I)."""
    measured = gaussianity(torch.ones(5, 3), one(5), 0.3)
    assert measured.gaussian_bits == 0
    assert measured.direction_bits == pytest.approx(0, abs=1e-9)
    assert measured.kurtosis is None


@pytest.mark.parametrize("half", [0.2, 1.0, 3.0, 40.0])
def test_two_codes_by_quadrature(half: float) -> None:
    """J of 1/2 N(-a, 1) + 1/2 N(a, 1); far apart 1/2 log(1 + a^2) - log 2."""

    def density(x: float) -> float:
        both = np.exp(-((x - half) ** 2) / 2) + np.exp(-((x + half) ** 2) / 2)
        return float(both / 2 / np.sqrt(2 * np.pi))

    def integrand(x: float) -> float:
        return -density(x) * log(density(x))

    own = 2 * quad(integrand, max(0.0, half - 9), half + 9, limit=200)[0]
    want = log(2 * np.pi * np.e * (1 + half**2)) / 2 - own
    nats = negentropy(np.array([-half, half]))
    assert nats == pytest.approx(want, abs=1e-5)
    if half == 40:
        assert nats == pytest.approx(log(1 + half**2) / 2 - log(2), abs=1e-5)


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 2**31), st.floats(0.1, 3), st.booleans())
def test_negentropy_is_what_the_certificate_gives_away(seed: int, sigma: float, far: bool) -> None:
    """gaussian_bits - I(image; message | label) >= direction_bits >= 0, equal in 1 dimension."""
    y = torch.arange(30) % 2
    z = normal(30, 2, seed) ** (3 if far else 1)
    stream = torch.Generator().manual_seed(seed)
    for codes, alone in ((z, False), (z[:, :1], True)):
        net = SplitNet(nn.Flatten(), nn.Identity(), Cut(sigma), codes.shape[1])
        x = codes[:, None, None, :].float()
        leak = optimal_leak(SmashedData(net), x, y, stream, draws=400).bits_beyond_label
        measured = gaussianity(codes, y, sigma)
        assert measured.direction_bits >= -1e-9
        assert measured.gaussian_bits - leak >= measured.direction_bits - 0.05
        if alone:
            assert measured.gaussian_bits - leak == pytest.approx(measured.direction_bits, abs=0.05)


def test_kurtosis_knows_tails() -> None:
    """Uniform -1.2, normal 0, Laplace 3; 40 codes of 64 values are enough to tell them apart."""
    stream = torch.Generator().manual_seed(1)
    flat = torch.rand(4000, 1, generator=stream, dtype=torch.float64)
    sharp = (flat - 0.5).sign() * -(1 - (2 * flat - 1).abs()).clamp_min(1e-9).log()
    for z, want, off in ((flat, -1.2, 0.1), (normal(4000, 1), 0.0, 0.25), (sharp, 3.0, 1.2)):
        assert gaussianity(z, one(len(z)), 1.0).kurtosis == pytest.approx(want, abs=off)
    y = torch.arange(400) % 10
    scale = 0.8 ** torch.arange(64)
    tails = normal(400, 1, 5).abs() ** 2 * normal(400, 64, 3) * scale
    plain = gaussianity(normal(400, 64) * scale, y, 0.3).kurtosis
    heavy = gaussianity(tails, y, 0.3).kurtosis
    assert plain == pytest.approx(0, abs=0.4)
    assert heavy is not None and heavy > 2


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 2**31), st.floats(-1e3, 1e3))
def test_turns_shifts_and_scales_change_nothing(seed: int, shift: float) -> None:
    """Only shape in units of sigma counts."""
    z, y = normal(24, 3, seed), torch.arange(24) % 2
    turn, _ = torch.linalg.qr(normal(3, 3, seed + 1))
    first, second = gaussianity(z, y, 0.5), gaussianity(2 * z @ turn + shift, y, 1.0)
    assert first.gaussian_bits == pytest.approx(second.gaussian_bits)
    assert first.direction_bits == pytest.approx(second.direction_bits, abs=1e-6)
    assert first.kurtosis == pytest.approx(second.kurtosis, abs=1e-6)


def test_principal_directions_are_uncorrelated() -> None:
    """Their variances are the covariance's eigenvalues."""
    along = principal_components((normal(50, 4) @ normal(4, 4, 1)).numpy())
    covariance = along.T @ along
    assert np.allclose(covariance, np.diag(np.diag(covariance)))
    bits = gaussianity(torch.tensor([[-1.0], [1.0]]), one(2), 0.5).gaussian_bits
    assert bits == pytest.approx(log2(1 + 4) / 2)


def test_no_noise_is_refused() -> None:
    """Codes have no density."""
    with pytest.raises(ValueError, match="sigma is 0"):
        gaussianity(torch.zeros(2, 1), one(2), 0.0)
