"""The guard against encoders that leak, measured on own images."""

import pytest
import torch
from torch import nn

from clients.encoder_leak_guard import LeakGuard, measure_leak
from fedcel.errors import LeakError
from fedcel.nets.cut import Cut
from fedcel.nets.split_net import SplitNet

IMAGES = torch.rand(64, 1, 4, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(64) % 2


def net(encoder: nn.Module, sigma: float, features: int = 16) -> SplitNet:
    """Return a net whose head is never asked."""
    return SplitNet(encoder, nn.Identity(), Cut(sigma), features)


class Constant(nn.Module):
    """An encoder that says nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(x), 2)


def stream() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_nothing_and_everything() -> None:
    """A constant tells 0 bits; the image itself without noise tells log2(32) beyond the label."""
    none = measure_leak(net(Constant(), 1.0, 2), IMAGES, LABELS, stream())
    assert none.bits == pytest.approx(0, abs=1e-9)
    whole = measure_leak(net(nn.Flatten(), 0.0), IMAGES, LABELS, stream())
    assert whole.bits == pytest.approx(5) == whole.cap
    assert whole.upper >= whole.bits


def test_the_guard_takes_the_quiet_and_refuses_the_loud() -> None:
    """The upper confidence limit decides."""
    quiet, loud = net(nn.Flatten(), 3.0), net(nn.Flatten(), 0.1)
    leak = LeakGuard(1.0).check(quiet, IMAGES, LABELS, stream())
    assert 0 < leak.bits < leak.upper <= 1
    with pytest.raises(LeakError, match="leaks up to 5"):
        LeakGuard(1.0).check(loud, IMAGES, LABELS, stream())
    with pytest.raises(LeakError, match="leaks up to"):
        LeakGuard((leak.bits + leak.upper) / 2).check(quiet, IMAGES, LABELS, stream())


def test_too_few_images_cannot_tell() -> None:
    """Fewer than 20, or so few that their cap is below the limit, or other than the labels."""
    quiet = net(nn.Flatten(), 3.0)
    with pytest.raises(LeakError, match="at least 20"):
        measure_leak(quiet, IMAGES[:19], LABELS[:19], stream())
    with pytest.raises(LeakError, match="at least 20"):
        measure_leak(quiet, IMAGES, LABELS[:63], stream())
    with pytest.raises(LeakError, match="could not tell"):
        LeakGuard(5.5).check(quiet, IMAGES, LABELS, stream())


@pytest.mark.parametrize("limit", [0.0, -1.0, float("inf"), float("nan")])
def test_a_limit_that_is_none(limit: float) -> None:
    """It must be a number of bits."""
    with pytest.raises(LeakError, match="limit is"):
        LeakGuard(limit)
