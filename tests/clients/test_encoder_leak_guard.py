"""The guard against encoders that leak, measured on own images."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from clients import ImageOwner
from clients.encoder_leak_guard import LeakGuard, measure_leak
from fedcel.attacks import hijack_encoder
from fedcel.data import Images, load_splits
from fedcel.errors import LeakError
from fedcel.losses import ClientLoss
from fedcel.nets.cut import Cut
from fedcel.nets.split_net import SplitNet
from fedcel.run_parts import init_net
from fedcel.settings import parse_settings
from tests.fedcel.losses.single import single, split_features

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


def packed(fresh: SplitNet, cel: ClientLoss, training: Images) -> SplitNet:
    """Return the net trained with the loss, its weight growing to 1 over the first ten epochs."""
    (x, y), draws, state = training, stream(), None
    adam = torch.optim.Adam(fresh.parameters(), 5e-3)
    for epoch in range(15):
        with torch.no_grad():
            state = cel.refresh(state, split_features(fresh.encode(x), y), draws)
        for part in torch.split(torch.randperm(len(y), generator=draws), 64):
            z = fresh.encode(x[part])
            task = cross_entropy(fresh.answer(fresh.add_noise(z, draws)), y[part])
            adam.zero_grad()
            (task + min(1, epoch / 10) * cel.loss(state, z, y[part], False).loss).backward()
            adam.step()
    return fresh


def right(net: SplitNet, x: torch.Tensor, y: torch.Tensor) -> float:
    return float((net.answer(net.encode(x)).argmax(1) == y).double().mean())


def test_an_encoder_that_was_trained_to_leak_is_refused() -> None:
    """At a device's default limit, 1 bit: accepted as the loss left it, refused once hijacked.

    The same layers, noise and own images, answers as right as before; only the bits tell them
    apart, .62 and 2.94 of 4.94.
    """
    settings = parse_settings({"net.noise": 0.3, "net.features": 32, "cel.kind": "cluster"})
    splits = load_splits(settings.data, settings.clients, settings.seed)
    cel = single(settings.cel, splits.classes, 32, 0.3)
    assert cel is not None
    honest = packed(init_net(settings, splits).net, cel, splits.training)
    x, y = splits.test
    guard, own_images = LeakGuard(ImageOwner.message_limit), (x[:300], y[:300])
    assert guard.limit == 1
    assert 0.5 < guard.check(honest, *own_images, stream()).bits < 0.85
    loud = hijack_encoder(honest, splits.auxiliary, stream(), 0.25)
    assert right(loud, x, y) > right(honest, x, y) - 0.03 > 0.9
    assert measure_leak(loud, *own_images, stream()).bits > 2.5
    with pytest.raises(LeakError, match=r"leaks up to [23]\.\d+ bits .* limit is 1;"):
        guard.check(loud, *own_images, stream())
