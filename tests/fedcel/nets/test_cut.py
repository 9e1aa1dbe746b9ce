"""Smashed data: moments by Monte Carlo, likelihood by integration and enumeration."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedcel.nets.cut import Cut
from tests.fedcel.seeded import seeded as stream

CHANCE = st.floats(0.01, 0.99)


def enumerated(seen: torch.Tensor, feature: torch.Tensor, cut: Cut) -> float:
    """Return log p(seen | feature) summed over all masks, without the Gaussian's constant."""
    chances = []
    for mask in product((0.0, 1.0), repeat=len(feature)):
        kept = torch.tensor(mask, dtype=torch.float64)
        weight = (1 - cut.dropout) ** sum(mask) * cut.dropout ** (len(mask) - sum(mask))
        gap = (seen - kept * feature) / cut.sigma
        chances.append(weight * math.exp(-float(gap.square().sum()) / 2))
    return math.log(sum(chances))


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1), CHANCE, st.floats(0.3, 3))
def test_dropout_sums_over_all_masks(seed: int, chance: float, sigma: float) -> None:
    """Every one of 2^3, for 4 rows of smashed data and 2 of features."""
    cut = Cut(sigma, chance)
    seen = torch.randn(4, 3, generator=stream(seed), dtype=torch.float64)
    features = torch.randn(2, 3, generator=stream(seed + 1), dtype=torch.float64)
    expected = [[enumerated(one, feature, cut) for feature in features] for one in seen]
    torch.testing.assert_close(cut.log_prob(seen, features), torch.tensor(expected).double())


@settings(deadline=None, max_examples=20)
@given(st.floats(-2, 2), CHANCE | st.just(0.0), st.floats(0.1, 2))
def test_a_density_integrates_to_one(z: float, chance: float, sigma: float) -> None:
    """The one constant left out is sigma sqrt(2 pi) a value, whatever z and the chance."""
    grid = torch.linspace(-2 - 9 * sigma, 2 + 9 * sigma, 4001, dtype=torch.float64)
    density = Cut(sigma, chance).log_prob(grid[:, None], torch.tensor([[z]])).exp()[:, 0]
    area = torch.trapezoid(density, grid).item()
    assert area == pytest.approx(sigma * math.sqrt(2 * math.pi), rel=1e-6)


@settings(deadline=None, max_examples=20)
@given(CHANCE)
def test_without_noise_chances_add_up_to_one(chance: float) -> None:
    """Over all smashed data of an image; a value that is 0 anyway is never missed."""
    feature, bare = torch.tensor([[0.5, -2.0, 0.0]]), Cut(0.0, chance)
    masks = torch.tensor(list(product((0.0, 1.0), repeat=2)))
    smashed = torch.cat([masks * feature[:, :2], torch.zeros(4, 1)], 1)
    chances = bare.log_prob(smashed, feature).exp()[:, 0]
    expected = [chance**2, chance * (1 - chance), chance * (1 - chance), (1 - chance) ** 2]
    torch.testing.assert_close(chances, torch.tensor(expected).double())
    assert bare.log_prob(feature + 1, feature) == -torch.inf


def test_frequencies_are_the_likelihood() -> None:
    """10 000 draws at sigma 0: each of 4 as often as it should be, 4 standard errors wide."""
    cut, feature = Cut(0.0, 0.3), torch.tensor([[0.5, -2.0]])
    seen, counts = torch.unique(
        cut.disturb(feature.expand(10_000, -1), stream(1)), dim=0, return_counts=True
    )
    expected = cut.log_prob(seen, feature).exp()[:, 0]
    assert len(seen) == 4
    assert (
        (counts / 10_000 - expected).abs() < 4 * (expected * (1 - expected) / 10_000).sqrt()
    ).all()


def test_moments() -> None:
    """Mean (1 - p) z and variance p (1 - p) z^2 + sigma^2, 4 standard errors wide."""
    cut, z, draws = Cut(0.4, 0.25), torch.tensor([0.0, 1.0, -3.0]), 40_000
    seen = cut.disturb(z.expand(draws, -1), stream(2))
    variance = 0.1875 * z.square() + 0.16
    assert ((seen.mean(0) - 0.75 * z).abs() < 4 * (variance / draws).sqrt()).all()
    torch.testing.assert_close(seen.var(0), variance, rtol=0.05, atol=0)


def test_a_vanishing_chance_is_the_gaussian() -> None:
    """The two branches meet."""
    seen, features = torch.randn(2, 5, 3, generator=stream(3))
    plain, mixed = Cut(0.5).log_prob(seen, features), Cut(0.5, 1e-30).log_prob(seen, features)
    torch.testing.assert_close(plain, mixed, rtol=1e-9, atol=1e-9)


def test_smashed_data_come_from_the_generator_alone() -> None:
    """The same bits twice, those of mask and noise drawn apart in this order; the dtype is z's."""
    cut, z = Cut(0.1, 0.5), torch.ones(6, 4, dtype=torch.float64)
    seen, again = cut.disturb(z, stream(4)), stream(4)
    mask = cut.draw_mask((6, 4), again)
    xi = 0.1 * torch.randn(6, 4, generator=again, dtype=torch.float64)
    assert torch.equal(seen, z * mask + xi)
    assert seen.dtype == torch.float64


def test_nothing_random() -> None:
    """Smashed data are z itself, nothing is drawn, and there is no likelihood."""
    bare, z, generator = Cut(), torch.ones(2, 3), stream(5)
    before = generator.get_state()
    assert bare.disturb(z, generator) is z
    assert torch.equal(generator.get_state(), before)
    assert (bare.is_random, Cut(0.1).is_random, Cut(0.0, 0.1).is_random) == (False, True, True)
    with pytest.raises(ValueError, match="sigma is 0"):
        bare.log_prob(z, z)


def explained(seen: Tensor, feature: Tensor) -> float:
    """Return the share of values that are a sum, in single precision, of features and any noise."""
    noise, is_explained = seen - feature, torch.zeros(seen.shape, dtype=torch.bool)
    for way in (-torch.inf, torch.inf):
        near = noise
        for _ in range(4):
            is_explained |= torch.eq(feature + near, seen)
            near = torch.nextafter(near, torch.tensor(way))
    return float(is_explained.double().mean())


def test_the_low_bits_of_smashed_data_do_not_tell_the_image() -> None:
    """Its features and another's explain as many values; in single precision they would not."""
    own, other = torch.rand(2, 200_000, generator=stream(6))
    plain = own + 2 * torch.randn(own.shape, generator=stream(7))
    assert explained(plain, own) == 1.0
    assert explained(plain, other) < 0.99
    seen = Cut(2.0).disturb(own, stream(7))
    assert explained(seen, own) < 0.99
    assert abs(explained(seen, own) - explained(seen, other)) < 5 / len(own) ** 0.5
