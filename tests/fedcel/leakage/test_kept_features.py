"""Features are computed once for each image, until the encoder changes."""

import pytest
import torch
from torch import Tensor, nn

from fedcel.leakage import kept_features
from fedcel.leakage.kept_features import KeptFeatures
from tests.fedcel.seeded import seeded


class CountingEncoder(nn.Module):
    """Flat pixels times a factor; counts the images."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(2.0), requires_grad=False)
        self.count = 0

    def forward(self, images: Tensor) -> Tensor:
        self.count += len(images)
        return images.flatten(1) * self.factor


def test_an_image_is_encoded_once_in_any_order() -> None:
    """Of four images and then six, two are new."""
    encoder, kept = CountingEncoder(), KeptFeatures()
    images = torch.rand(6, 1, 2, 2, generator=seeded(0))
    kept.encode(images[:4], encoder, encoder)
    order = torch.tensor([5, 0, 3, 4, 1, 2])
    features = kept.encode(images[order], encoder, encoder)
    assert torch.equal(features, 2 * images[order].flatten(1))
    assert encoder.count == 6


def test_a_changed_encoder_encodes_anew() -> None:
    """A parameter that is changed in place makes all features stale."""
    encoder, kept = CountingEncoder(), KeptFeatures()
    images = torch.rand(3, 1, 2, 2, generator=seeded(0))
    kept.encode(images, encoder, encoder)
    encoder.factor.mul_(2)
    assert torch.equal(kept.encode(images, encoder, encoder), 4 * images.flatten(1))
    encoder.factor.data.mul_(2)  # as where parameters are views of a vector
    assert torch.equal(kept.encode(images, encoder, encoder), 8 * images.flatten(1))


def test_a_caller_may_change_what_it_gets() -> None:
    """The kept features stay."""
    encoder, kept = CountingEncoder(), KeptFeatures()
    images = torch.rand(3, 1, 2, 2, generator=seeded(0))
    kept.encode(images, encoder, encoder).zero_()
    assert torch.equal(kept.encode(images, encoder, encoder), 2 * images.flatten(1))


def test_what_has_no_room_is_encoded_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room the features are right all the same."""
    monkeypatch.setattr(kept_features, "MAX_KEPT_BYTES", 3 * 16)
    encoder, kept = CountingEncoder(), KeptFeatures()
    images = torch.rand(6, 1, 2, 2, generator=seeded(0))
    kept.encode(images[:3], encoder, encoder)
    assert torch.equal(kept.encode(images, encoder, encoder), 2 * images.flatten(1))
    assert torch.equal(kept.encode(images[:3], encoder, encoder), 2 * images[:3].flatten(1))
    assert encoder.count == 6  # what had no room left room for nothing less
