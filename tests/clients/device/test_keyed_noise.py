"""Keyed noise: a function of key and image, of the cut's law."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from clients.device.keyed_noise import (
    compute_fingerprint,
    disturb_features,
    draw_uniforms,
    load_device_key,
    words_to_uniforms,
)
from fedcel.errors import RunError
from fedcel.nets.cut import Cut

IMAGE = torch.rand(1, 4, 4, generator=torch.Generator().manual_seed(0))


@settings(max_examples=8)
@given(st.binary(min_size=32, max_size=32), st.text(max_size=8), st.integers(0, 15))
def test_the_fingerprint_follows_key_version_and_every_pixel(
    key: bytes, version: str, pixel: int
) -> None:
    """Equal for equals, whatever the memory layout; different where one bit differs."""
    first = compute_fingerprint(key, version, IMAGE)
    turned = IMAGE.transpose(1, 2).contiguous().transpose(1, 2)
    assert compute_fingerprint(key, version, turned) == first
    changed = IMAGE.clone().flatten()
    changed[pixel] += 1e-6
    different = [
        compute_fingerprint(bytes([key[0] ^ 1]) + key[1:], version, IMAGE),
        compute_fingerprint(key, f"{version}0", IMAGE),
        compute_fingerprint(key, version, changed.reshape(1, 4, 4)),
        compute_fingerprint(key, version, IMAGE.reshape(4, 4, 1)),
    ]
    assert len({first, *different}) == 5


def test_the_noise_is_of_the_cuts_law() -> None:
    """Normal with sigma, 20 000 values; with dropout that share of zeros before the noise."""
    seed, z = bytes(32), torch.full((20_000,), 0.5)
    noise = disturb_features(Cut(0.3), z, seed) - z
    assert kstest((noise / 0.3).numpy(), "norm").pvalue > 0.01
    dropped = disturb_features(Cut(0.0, 0.25), z, seed)
    assert set(dropped.tolist()) == {0.0, 0.5}
    assert abs(float((dropped == 0).double().mean()) - 0.25) < 0.02
    both = disturb_features(Cut(0.3, 0.25), z, seed)
    torch.testing.assert_close(both, dropped + noise)
    assert both.dtype == z.dtype
    assert abs(float(noise[dropped == 0].mean())) < 0.02  # which are dropped tells nothing of xi
    torch.testing.assert_close(disturb_features(Cut(0.0), z, seed), z, rtol=0, atol=0)


@given(st.binary(min_size=32, max_size=32), st.integers(1, 64))
def test_uniforms_lie_inside_and_repeat(seed: bytes, count: int) -> None:
    """Never 0 or 1, whose normal values are infinite; more values begin with the same ones."""
    uniforms = draw_uniforms(seed, b"noise", count)
    assert ((uniforms > 0) & (uniforms < 1)).all()
    assert torch.equal(draw_uniforms(seed, b"noise", count + 1)[:-1], uniforms)
    assert not torch.equal(draw_uniforms(seed, b"mask", count), uniforms)


def test_the_outermost_words_lie_inside() -> None:
    """All zeros and all ones: a value of 1 would be infinite noise."""
    uniforms = words_to_uniforms(np.array([0, 2**64 - 1], np.uint64))
    assert uniforms.tolist() == [2.0**-53, 1 - 2.0**-53]
    assert torch.special.ndtri(uniforms).isfinite().all()


def test_torchs_generator_would_not_do() -> None:
    """It keeps 32 bits of a seed: whoever tries them all needs no key."""
    small, large = (torch.Generator().manual_seed(5 + extra) for extra in (0, 2**32))
    assert torch.equal(torch.randn(9, generator=small), torch.randn(9, generator=large))


def test_a_key_that_others_read_or_that_is_none_is_refused(tmp_path: Path) -> None:
    """Mode and length."""
    path = tmp_path / "device.key"
    load_device_key(path)
    path.chmod(0o644)
    with pytest.raises(RunError, match="open to others"):
        load_device_key(path)
    path.write_bytes(b"short")
    path.chmod(0o600)
    with pytest.raises(RunError, match="holds 5 bytes"):
        load_device_key(path)


def test_each_value_has_noise_of_its_own_scale() -> None:
    """The same xi, times what was learned."""
    z, seed = torch.zeros(4), b"k" * 32
    scale = torch.tensor([0.5, 1.0, 2.0, 4.0])
    plain, scaled = (disturb_features(Cut(0.3), z, seed, part) for part in (None, scale))
    torch.testing.assert_close(scaled, plain * scale)
