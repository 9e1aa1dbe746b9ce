"""Leak of an attribute: closed forms by quadrature, and the ends."""

from math import log, log2, sqrt

import pytest
import torch
from torch import Tensor

from fedcel.leakage import measure_attribute_leakage
from fedcel.leakage.attribute_leak import attribute_shares, score_attribute
from tests.fedcel.seeded import seeded

SIGMA = 0.7


def two_gaussians(gap: float) -> tuple[float, float]:
    """Return I(a; gap * a + SIGMA * xi) in bits and Bayes accuracy, a an even coin; quadrature."""
    grid = torch.linspace(-8, 8 + gap, 40_001, dtype=torch.float64)
    density = torch.exp(-((grid - torch.tensor([[0.0], [gap]])) ** 2) / (2 * SIGMA**2))
    density /= SIGMA * sqrt(2 * torch.pi)
    both = density.mean(0)
    nats = torch.trapezoid(torch.xlogy(density, density / both).mean(0), grid)
    return float(nats) / log(2), float(torch.trapezoid(density.amax(0) / 2, grid))


@pytest.mark.parametrize("gap", [0.0, 0.5, 2.0, 20.0])
def test_two_values_through_noise(gap: float) -> None:
    """Two labels of two attributes, 50 equal images of each: the channel of one bit."""
    label = torch.arange(200) % 2
    attribute = torch.arange(200) // 2 % 2
    features = torch.stack([gap * attribute.double(), 100.0 * label], 1)
    leak = measure_attribute_leakage(
        features=features, labels=label, attributes=attribute, noise=SIGMA, draws=400
    )
    bits, accuracy = two_gaussians(gap)
    assert leak.bits == pytest.approx(bits, abs=2 * leak.half_width + 1e-9)
    assert leak.accuracy == pytest.approx(accuracy, abs=2 * leak.accuracy_half_width + 1e-9)
    assert leak.cap_bits == pytest.approx(1)
    assert leak.accuracy_by_label == 0.5
    if gap:  # else all ties, broken by rounding
        assert leak.accuracy_of_others == pytest.approx(accuracy, abs=0.02)
    assert leak.image_count == 200


def gaussian_classes(seed: int) -> tuple[Tensor, Tensor]:
    """Return 600 features, N(a, 1) of two attributes, and these."""
    stream = seeded(seed)
    attribute = torch.arange(600) % 2
    return attribute[:, None] + torch.randn(600, 1, generator=stream).double(), attribute


def test_the_others_approach_the_population_from_below() -> None:
    """Gaussian attributes of spread 1 a gap 1 apart: who knows the sender knows more."""
    features, attribute = gaussian_classes(0)
    leak = measure_attribute_leakage(features=features, attributes=attribute, noise=SIGMA)
    spread = sqrt(1 + SIGMA**2)
    best = 0.5 * (1 + torch.erf(torch.tensor(0.5 / spread / sqrt(2))))
    assert leak.accuracy_of_others == pytest.approx(float(best), abs=0.02)
    quiet = measure_attribute_leakage(features=features, attributes=attribute, noise=0.001)
    assert quiet.accuracy > 0.8 > quiet.accuracy_of_others


def test_what_the_label_tells_is_no_leak() -> None:
    """The attribute is the label: nothing is left to tell, and it is named always."""
    label = torch.arange(40) % 4
    leak = measure_attribute_leakage(
        features=torch.randn(40, 3).double(), labels=label, attributes=label, noise=0.1
    )
    assert leak.bits == pytest.approx(0, abs=1e-9)
    assert (leak.cap_bits, leak.accuracy_by_label) == (0, 1)
    assert leak.accuracy == pytest.approx(1)
    assert leak.accuracy_of_others == 1


def test_without_noise_all_of_it_and_nothing() -> None:
    """Distinct features tell the attribute; those of no other image help no one."""
    attribute = torch.tensor([0, 0, 0, 1, 1, 2])
    features = torch.arange(6.0)[:, None]
    leak = measure_attribute_leakage(features=features, attributes=attribute, noise=0.0)
    entropy = -sum(p * log2(p) for p in (1 / 2, 1 / 3, 1 / 6))
    assert leak.bits == pytest.approx(entropy) == leak.cap_bits
    assert leak.accuracy == 1
    # No other could have sent it: the most frequent attribute is named.
    assert leak.accuracy_of_others == 0.5
    flat = measure_attribute_leakage(features=0 * features, attributes=attribute, noise=0.0)
    assert flat.bits == pytest.approx(0, abs=1e-9)
    assert flat.accuracy == pytest.approx(0.5)


def test_scores_by_hand() -> None:
    """Chances 1/2, 1/4, 1/4 of three images of one label, and one of another label."""
    chances = torch.tensor([[0.5, 0.25, 0.25, 0.9]]).log()
    scores, squares = score_attribute(
        chances, torch.tensor([1]), torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 1, 1])
    )
    assert scores[:, 0].tolist() == pytest.approx([log2(0.5), 0.5, 0.0])
    assert squares[:, 0].tolist() == pytest.approx([1.0, 0.25, 0.0])  # both attributes 1/2
    shares = attribute_shares(torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 1, 1]))
    assert shares[0].tolist() == pytest.approx([1 / 3, 2 / 3])
    assert shares[3].tolist() == [0, 1]


def test_refuses_nonsense() -> None:
    """What is missing or of another length."""
    with pytest.raises(ValueError, match="attributes are missing"):
        measure_attribute_leakage(features=torch.zeros(4, 1), noise=1.0)
    with pytest.raises(ValueError, match=r"attributes are of shape \(3,\)"):
        measure_attribute_leakage(features=torch.zeros(4, 1), attributes=[0, 1, 1], noise=1.0)
