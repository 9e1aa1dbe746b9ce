"""Smashed data as an attacker sees them."""

import sys

import pytest
import torch
from torch import nn

from fedcel.leakage import (
    ARCHITECTURE,
    FREE_QUERIES,
    HEAD,
    LOG_PROB,
    MEAN,
    NOISELESS,
    ObservationLaw,
    ObservationMean,
    ObservationMisfit,
    SmashedData,
    optimal_leak,
)
from fedcel.nets.cut import Cut, NoiseScale
from fedcel.nets.split_net import SplitNet
from tests.fedcel.seeded import pixels, seeded


def images(seed: int, count: int = 5) -> torch.Tensor:
    """Return images (count, 1, 1, 3)."""
    return torch.rand(count, 1, 1, 3, generator=seeded(seed))


def test_small_distances_far_from_the_origin() -> None:
    """Values of 1e8 a distance of 12 apart: |a|^2 - 2ab + |b|^2 would lose all digits."""
    x = torch.tensor([1000.1, 1000.10012]).reshape(2, 1, 1, 1)
    log_probs = pixels(1e-5).law_of(x)(x.flatten(1))
    gap = (x[1].item() - x[0].item()) / 1e-5
    torch.testing.assert_close(
        log_probs[0], torch.tensor([0.0, -gap * gap / 2]).double(), rtol=1e-6, atol=0
    )


def test_equal_features_have_equal_likelihood() -> None:
    """Copies of an image tie to the last bit, wherever they stand."""
    x = images(4, 37)[[0] * 20 + list(range(1, 18))]
    log_probs = pixels(0.01).law_of(x)(torch.rand(9, 3, generator=seeded(1)))
    assert torch.equal(log_probs[:, :20], log_probs[:, :1].expand(-1, 20))


def test_grants() -> None:
    """Without noise there is no density, and asking for it says so."""
    noisy, bare = pixels(0.1), pixels(0.0)
    assert isinstance(noisy, ObservationMean)
    assert isinstance(noisy, ObservationLaw)
    assert noisy.grants == {MEAN, FREE_QUERIES, HEAD, ARCHITECTURE, LOG_PROB}
    assert bare.grants == {MEAN, FREE_QUERIES, HEAD, ARCHITECTURE, NOISELESS}
    several = SmashedData(noisy.net, fits_head=False)  # messages in a row, which no head takes
    assert several.grants == noisy.grants - {HEAD}
    with pytest.raises(ValueError, match="sigma is 0"):
        bare.law_of(images(1))(torch.zeros(1, 3))


@pytest.mark.parametrize("sigma", [0.0, 0.2])
def test_dropout_has_a_law_with_and_without_noise(sigma: float) -> None:
    """It is random either way: the likelihood is granted, and is that of the cut."""
    surface, x = pixels(sigma, dropout=0.3), images(5)
    assert surface.grants == {MEAN, FREE_QUERIES, HEAD, ARCHITECTURE, LOG_PROB}
    seen = surface.sample(x, seeded(3))
    want = Cut(sigma, 0.3).log_prob(seen, x.flatten(1))
    assert torch.equal(surface.law_of(x)(seen), want)
    assert want.diagonal().isfinite().all()


def test_mean_under_dropout() -> None:
    """(1 - p) z: that of 20 000 samples, 4 standard errors wide; its gradient is 1 - p."""
    surface, x = pixels(0.2, dropout=0.3), images(6, 1).requires_grad_()
    mean = surface.mean(x)
    torch.testing.assert_close(mean, 0.7 * x.flatten(1))
    seen = surface.sample(x.expand(20_000, -1, -1, -1), seeded(8))
    error = (0.21 * x.flatten(1).square() + 0.04).sqrt() / 20_000**0.5
    assert ((seen.mean(0) - mean).abs() < 4 * error).all()
    torch.testing.assert_close(torch.autograd.grad(mean.sum(), x)[0], torch.full_like(x, 0.7))


def test_misfit_without_dropout_is_the_squared_gap() -> None:
    """(.1^2 + .2^2 + .3^2)/3, whatever the noise."""
    x = torch.tensor([0.5, 0.5, 0.5]).reshape(1, 1, 1, 3)
    seen = torch.tensor([[0.4, 0.7, 0.2]])
    for surface in (pixels(0.0), pixels(0.2)):
        assert isinstance(surface, ObservationMisfit)
        torch.testing.assert_close(surface.misfit(x, seen), torch.tensor([0.14 / 3]))


def test_misfit_of_dropout_alone() -> None:
    """A value that is 0 says nothing, of the others the squared gap: (.1^2 + .3^2)/3."""
    x = torch.tensor([0.5, 0.5, 0.5]).reshape(1, 1, 1, 3).requires_grad_()
    misfit = pixels(0.0, dropout=0.3).misfit(x, torch.tensor([[0.4, 0.0, 0.2]]))
    torch.testing.assert_close(misfit, torch.tensor([0.1 / 3]))
    (slope,) = torch.autograd.grad(misfit.sum(), x)
    torch.testing.assert_close(slope.flatten(), torch.tensor([0.2, 0.0, 0.6]) / 3)


def test_fresh_encoder_keeps_no_parameter() -> None:
    """Layers that can be reset are: every parameter differs, or is what a new layer begins with."""
    old = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(4, 3))
    for parameter in old.parameters():
        nn.init.constant_(parameter, 7.0)
    surface = SmashedData(SplitNet(old, nn.Identity(), Cut(0.1), 3))
    state = torch.random.get_rng_state()
    one, two = (surface.fresh_encoder(seeded(1)) for _ in range(2))
    assert all((parameter != 7).all() for parameter in one.parameters())
    assert all(map(torch.equal, one.parameters(), two.parameters()))
    assert all((parameter == 7).all() for parameter in old.parameters())
    assert torch.equal(state, torch.random.get_rng_state())


def test_answer_is_the_head() -> None:
    """What the head makes of a message, with a gradient."""
    surface = SmashedData(SplitNet(nn.Flatten(), nn.Linear(3, 2), Cut(0.1), 3))
    seen = torch.rand(4, 3, generator=seeded(1))
    assert torch.equal(surface.answer(seen), surface.net.head(seen))
    assert surface.answer(seen).requires_grad


@pytest.mark.parametrize("dropout", [0.3, 0.0])
def test_misfit_under_dropout_or_scaled_noise_is_the_law(dropout: float) -> None:
    """-2 sigma^2 log p over the number of values, with a gradient, through the scale as well."""
    layer = None
    if not dropout:
        layer = NoiseScale(3, is_of_image=True, limit=5.0)
        for parameter in layer.parameters():
            nn.init.normal_(parameter, generator=seeded(1))
    cut = Cut(0.2, dropout)
    surface = SmashedData(SplitNet(nn.Flatten(), nn.Identity(), cut, 3, noise_scale=layer))
    x = images(5).requires_grad_()
    seen = surface.sample(images(4), seeded(3))
    misfit = surface.misfit(x, seen)
    law = surface.law_of(x.detach())(seen).diagonal()
    if not dropout:
        law = law + 3 * torch.tensor(0.2).log()
    torch.testing.assert_close(misfit.double(), -2 * 0.04 * law / 3, rtol=1e-4, atol=1e-6)
    assert torch.autograd.grad(misfit.sum(), x)[0].isfinite().all()


@pytest.mark.parametrize("is_of_image", [False, True])
def test_messages_with_learned_noise_have_no_gradient(is_of_image: bool) -> None:
    """Attacks turn what they make of messages into numbers, which a gradient forbids."""
    layer = NoiseScale(3, is_of_image=is_of_image, limit=4.0)
    surface = pixels(0.2, noise_scale=layer)
    assert not surface.sample(images(3), seeded(0)).requires_grad


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of images that nets encode, call by call."""
    counts, encode = list[int](), SplitNet.encode

    def count(net: SplitNet, part: torch.Tensor) -> torch.Tensor:
        counts.append(len(part))
        return encode(net, part)

    monkeypatch.setattr(SplitNet, "encode", count)
    return counts


def test_many_images_are_encoded_in_batches(
    encoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more bytes at once than allowed; each image has its own features."""
    monkeypatch.setattr(sys.modules["fedcel.nets.encode_images"], "BATCH_BYTES", 3 * 3 * 4)
    x = images(0, 7)
    assert torch.equal(pixels(0.1).encode(x), x.flatten(1))
    assert encoded == [3, 3, 1]


@pytest.mark.parametrize("sigma", [0.0, 0.1])
def test_images_are_encoded_once_for_all_their_messages(encoded: list[int], sigma: float) -> None:
    """Once, to send them and to explain what was sent, however many messages there are."""
    optimal_leak(pixels(sigma), images(0, 7), torch.arange(7) % 2, seeded(), draws=50)
    assert encoded == [7]
