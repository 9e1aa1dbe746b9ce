"""Test images as a deployed model may meet them."""

import pytest
import torch

from fedcel.errors import SettingsError
from sims.bench.shifted_images import SHIFTS, add_pixel_noise, parse_shifts, turn_images


def test_images_are_turned_about_their_centre() -> None:
    """A centred disc stays; a bar does not, and each image turns one way or the other."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, 33), torch.linspace(-1, 1, 33), indexing="ij")
    disc, bar = (x**2 + y**2 < 0.5).float(), (x.abs() < 0.2).float()
    stream = torch.Generator().manual_seed(0)
    turned = turn_images(torch.stack([disc] * 8 + [bar] * 8)[:, None], stream)
    assert (turned[:8, 0] - disc).abs().mean() < 0.03
    assert (turned[8:, 0] - bar).abs().mean() > 0.1
    assert len(torch.unique(turned[8:].flatten(1), dim=0)) == 2


def test_noise_is_of_the_stated_size() -> None:
    """Grey images get noise of .2; black ones stay in [0, 1]."""
    stream = torch.Generator().manual_seed(0)
    noisy = add_pixel_noise(torch.full((50, 1, 8, 8), 0.5), stream)
    assert noisy.std().item() == pytest.approx(0.2, rel=0.05)
    assert add_pixel_noise(torch.zeros(5, 1, 8, 8), stream).min() == 0


def test_shifts_are_named() -> None:
    """None, some, or a refusal that names those that there are."""
    assert parse_shifts("none") == {}
    assert parse_shifts("turned, noisy") == dict(SHIFTS)
    with pytest.raises(SettingsError, match="'blurred', must be none or some of turned, noisy"):
        parse_shifts("blurred")
