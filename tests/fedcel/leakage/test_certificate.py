"""The certificate: above every measured leak, and equal to it where the answer is known."""

from itertools import product
from math import log, log2

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedcel.errors import NetError
from fedcel.leakage import optimal_leak
from fedcel.leakage.certificate import (
    DIRECTIONS,
    certificate,
    entropy_bound,
    fano_bound,
    find_main_coordinates,
)
from fedcel.nets.cut import NoiseScale
from tests.fedcel.seeded import as_images, pixels, seeded


def blobs(seed: int, spread: float, count: int = 120) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes (count, 4) in 3 classes around random centres."""
    stream = seeded(seed)
    y = torch.arange(count) % 3
    centres = torch.randn(3, 4, generator=stream)
    return centres[y] + spread * torch.randn(count, 4, generator=stream), y


@settings(deadline=None)
@given(st.integers(0, 2**31), st.floats(0.01, 2), st.floats(0.05, 3), st.booleans())
def test_above_the_optimal_attacker(seed: int, spread: float, sigma: float, uneven: bool) -> None:
    """Information, information beyond the label and identification, to Monte Carlo error.

    Noise of one standard deviation, or of each image's own.
    """
    z, y = blobs(seed, spread)
    stream = seeded(seed)
    layer = None
    if uneven:
        layer = NoiseScale(4, is_of_image=True, limit=4.0)
        for parameter in layer.parameters():
            nn.init.normal_(parameter, generator=stream)
    seen = pixels(sigma, noise_scale=layer)
    leak = optimal_leak(seen, as_images(z), y, stream, identification_candidates=40, draws=40)
    with torch.no_grad():
        limit = certificate(z, y, sigma, 40, scale=seen.net.scale_noise(z))
    assert leak.information_bits <= limit.bits + 0.05
    assert leak.bits_beyond_label <= limit.bits_within_class + 0.05
    assert leak.identification <= limit.identification + 0.02
    if not uneven:
        assert limit.bits <= log2(120) + 1e-9
        assert limit.bits_within_class <= log2(40) + 1e-9


def test_one_group_is_the_gaussian_channel() -> None:
    """Two codes at +-s on an axis: 1/2 log(1 + s^2/sigma^2), capped by log 2."""
    codes, one = np.array([[1.0, 0], [-1, 0]]), np.zeros(2, dtype=np.int64)
    assert entropy_bound(codes, 3.0, one) == pytest.approx(log(1 + 1 / 9) / 2)
    assert entropy_bound(codes, 0.1, one) == pytest.approx(log(2))


def test_a_large_table_is_bounded_as_a_small_one() -> None:
    """Few directions carry all: its partitions, looked for in those alone, are as tight."""
    stream = seeded(0)
    z = torch.randn(600, 64, generator=stream)
    z[:, 8:] *= 1e-3
    y = torch.arange(600) % 2
    large, small = (certificate(z, y, 1.0, large_table=size) for size in (0, 2**21))
    gaussian = 8 * log(2) / 2 / log(2)
    assert large.bits == pytest.approx(gaussian, abs=0.2)
    assert large.bits_within_class == pytest.approx(small.bits_within_class, abs=0.1)


def test_directions_that_move_together_count_once() -> None:
    """A line in 5 dimensions carries what its length does, in one dimension."""
    line = np.linspace(-1, 1, 50)[:, None]
    one = np.zeros(50, dtype=np.int64)
    spread = np.repeat(line, 5, axis=1) / np.sqrt(5)
    assert entropy_bound(spread, 0.5, one) == pytest.approx(entropy_bound(line, 0.5, one))


def test_label_only_codes() -> None:
    """Nothing varies within a class: log2 C in all, nothing beyond the label."""
    y = torch.arange(60) % 4
    bound = certificate(torch.eye(4)[y], y, 0.01, 60)
    assert bound.bits == pytest.approx(2)
    assert bound.bits_within_class == pytest.approx(0, abs=1e-12)


def test_codes_that_say_nothing() -> None:
    """One code for all: 0 bits, one of the candidates by chance."""
    bound = certificate(torch.ones(30, 3), torch.arange(30) % 3, 0.1, 20)
    assert bound.bits == pytest.approx(0, abs=1e-12)
    assert bound.identification == pytest.approx(1 / 20)


@settings(max_examples=8)
@given(st.integers(0, 2**31), st.floats(0.05, 1), st.floats(-1e4, 1e4))
def test_shift_and_scale_change_nothing(seed: int, sigma: float, shift: float) -> None:
    """Only distances in units of sigma matter."""
    z, y = blobs(seed, 0.3)
    z = z.double()
    one, two = certificate(z, y, sigma), certificate(3 * z + shift, y, 3 * sigma)
    assert one.bits == pytest.approx(two.bits, abs=0.02)


@given(st.floats(0.02, 0.999), st.integers(2, 500))
def test_fano_is_attained(right: float, m: int) -> None:
    """A channel right with chance p, else uniform: its own information gives p back."""
    right = max(right, 1 / m + 1e-6)
    wrong = (1 - right) * (log(m - 1) - log(1 - right)) if right < 1 else 0.0
    nats = log(m) - wrong + right * log(right)
    assert fano_bound(nats, m) == pytest.approx(right, abs=1e-6)
    assert fano_bound(nats, m) <= (nats + log(2)) / log(m) + 1e-9


def test_fano_at_the_ends() -> None:
    """No information, or what rounding hides: chance; all of it, or one candidate: always."""
    for m, nats in product((2, 10, 100, 400), (0.0, 1e-300, 1e-17, 1e-16)):
        assert fano_bound(nats, m) == pytest.approx(1 / m, abs=1e-6)
    assert fano_bound(log(10), 10) == 1
    assert fano_bound(0.0, 1) == 1


def test_few_and_equal_codes() -> None:
    """Fewer distinct codes than clusters: valid, and no warning escapes."""
    z = torch.tensor([[0.0], [1.0]]).repeat(20, 1)
    bound = certificate(z, torch.zeros(40, dtype=torch.long), 0.001)
    assert bound.bits == pytest.approx(1)
    assert certificate(z[:2], torch.zeros(2, dtype=torch.long), 0.001).bits == pytest.approx(1)


def test_refuses_nonsense() -> None:
    """A negative sigma, and a model that diverged."""
    y = torch.zeros(2, dtype=torch.long)
    with pytest.raises(ValueError, match="sigma is -1"):
        certificate(torch.zeros(2, 1), y, -1.0)
    with pytest.raises(NetError, match="NaN"):
        certificate(torch.full((2, 1), torch.nan), y, 1.0)


def test_more_features_than_images_need_no_table_of_features() -> None:
    """100 000 features of 40 images: the coordinates are found among images, in little memory."""
    features = np.random.default_rng(0).normal(size=(40, 100_000))
    coordinates = find_main_coordinates(features)
    centred = features - features.mean(0)
    assert coordinates.shape == (40, DIRECTIONS)
    largest = np.linalg.svd(centred, compute_uv=False)[:DIRECTIONS]
    np.testing.assert_allclose(np.linalg.norm(coordinates, axis=0)[::-1], largest)


def test_without_noise_equal_features_are_not_told_apart() -> None:
    """Two, one and one of four images: 1.5 bits of 2; in class 0 nothing, in class 1 one bit."""
    z = torch.tensor([[1.0, 2], [1, 2], [3, 4], [5, 6]])
    bound = certificate(z, torch.tensor([0, 0, 1, 1]), 0.0, candidates=4)
    assert (bound.bits, bound.bits_within_class) == (1.5, 0.5)
    assert 0.5 < bound.identification < 1
    assert certificate(z[1:], torch.tensor([0, 1, 1]), 0.0).bits == log2(3)
    distinct = certificate(torch.rand(8, 2), torch.tensor([0, 0, 0, 0, 1, 1, 2, 2]), 0.0, 8)
    assert distinct == (3, (4 * 2 + 4 * 1) / 8, 1.0)


def test_one_noise_written_as_many_is_bounded_alike() -> None:
    """A constant scale is another sigma; one a feature is that of whitened features."""
    z, y = blobs(3, 0.4)
    one, two = certificate(z, y, 0.5), certificate(z, y, 0.25, scale=torch.full_like(z, 2.0))
    assert one.bits == pytest.approx(two.bits)
    assert one.bits_within_class == pytest.approx(two.bits_within_class)
    scale = torch.tensor([0.5, 1.0, 2.0, 4.0])
    groups = np.zeros(len(y), dtype=np.int64)
    whitened = entropy_bound((z / scale).double().numpy(), 0.3, groups)
    assert entropy_bound(z.double().numpy(), 0.3 * scale.double().numpy(), groups) == pytest.approx(
        whitened
    )


def test_two_equal_features_of_unequal_noise() -> None:
    """Nothing in the mean: 1/2 log of the mean variance less the mean of 1/2 log of each."""
    deviations = np.array([[1.0], [3.0]])
    bound = entropy_bound(np.zeros((2, 1)), deviations, np.zeros(2, dtype=np.int64))
    assert bound == pytest.approx(log(5) / 2 - log(9) / 4)
