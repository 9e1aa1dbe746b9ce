"""Leak of one image: the number that `measure_leakage` averages."""

from math import log2

import pytest
import torch

import fedcel
from fedcel.leakage import image_leak
from tests.fedcel.seeded import seeded

M, D = 60, 6


def made_features() -> tuple[torch.Tensor, torch.Tensor]:
    """Return features of sixty images in three classes of unequal size."""
    stream = seeded(3)
    return torch.rand(M, D, generator=stream), torch.arange(M) % 7 % 3


@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize("uneven", [False, True])
def test_it_is_what_measure_leakage_averages(dropout: float, uneven: bool) -> None:
    """Image by image, to the error that both state; noise of each feature or of each image."""
    z, y = made_features()
    noise = torch.linspace(0.1, 0.5, D)
    if uneven:
        if dropout:
            pytest.skip("not allowed together")
        noise = noise * torch.linspace(0.8, 1.2, M)[:, None]
    whole = fedcel.measure_leakage(
        features=z,
        labels=y,
        noise=(lambda _: noise) if uneven else noise,
        dropout=dropout,
        draws=400,
        seed=5,
    )
    stream = seeded(1)
    for sender in range(0, M, 12):
        leak = image_leak(z, y, sender, noise=noise, generator=stream, dropout=dropout, draws=2000)
        error = 2.5 * leak.information_half_width
        assert abs(leak.information - float(whole.information[sender])) < error
        assert abs(leak.beyond_label - float(whole.beyond[sender])) < 2.5 * leak.beyond_half_width


def test_the_mean_of_several_messages_says_it_all() -> None:
    """Four messages at sigma are one at half of it, and the product of likelihoods agrees."""
    z, y = made_features()
    noise = torch.full((D,), 0.4)
    four = image_leak(z, y, 4, noise=noise, generator=torch.Generator(), messages=4, draws=4000)
    one = image_leak(z, y, 4, noise=noise / 2, generator=torch.Generator(), draws=4000)
    assert four == one
    nearly_even = noise * (1 + 1e-9 * torch.arange(M)[:, None])
    product = image_leak(z, y, 4, noise=nearly_even, generator=seeded(8), messages=4)
    assert abs(product.information - four.information) < 2 * product.information_half_width


def test_without_noise_all_is_told() -> None:
    """But of images with equal features."""
    z, y = made_features()
    z[9] = z[2]
    y[9] = y[2]
    leak = image_leak(z, y, 2, noise=torch.zeros(D), generator=torch.Generator(), messages=9)
    assert leak.information == pytest.approx(leak.cap - 1)
    assert leak.beyond_label == pytest.approx(leak.cap_beyond_label - 1)
    assert leak.information_half_width == 0


@pytest.mark.parametrize(("change", "reason"), [({"sender": 60}, "0 to 59"), ({"draws": 1}, "2")])
def test_numbers_out_of_range_are_refused(change: dict[str, int], reason: str) -> None:
    z, y = made_features()
    sender = change.pop("sender", 0)
    with pytest.raises(ValueError, match=reason):
        image_leak(z, y, sender, noise=torch.ones(D), generator=torch.Generator(), **change)


def test_an_interval_holds_what_a_rare_message_costs() -> None:
    """A one that is dropped once in a thousand looks like the zero, which costs ten bits."""
    p, z, y = 0.001, torch.tensor([[0.0], [1.0]]), torch.zeros(2).long()
    truth = 1 + p * log2(p / (1 + p))
    held = 0
    for seed in range(200):
        stream = seeded(seed)
        leak = image_leak(z, y, 1, noise=torch.zeros(1), generator=stream, dropout=p, draws=1600)
        held += abs(leak.information - truth) <= leak.information_half_width
    assert held >= 186
