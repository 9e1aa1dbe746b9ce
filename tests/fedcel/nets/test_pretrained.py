"""Pretrained nets: BatchNorm folded away, parameters kept."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torchvision.models import resnet18

from fedcel.errors import NetError
from fedcel.nets import split_net
from fedcel.nets.pretrained import fold_batch_norms, keep_parameters
from fedcel.seeding import make_generator
from fedcel.settings import NetSettings

WEIGHTS = Path("weights.pt")


def trained(net: nn.Module) -> nn.Module:
    """Return the net with statistics and scales as training would leave them."""
    stream = torch.Generator().manual_seed(0)
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            for values, low in ((layer.running_mean, -0.5), (layer.running_var, 0.5)):
                values.uniform_(low, low + 1, generator=stream)  # type: ignore[union-attr]
            nn.init.uniform_(layer.weight, 0.5, 1.5, generator=stream)
            nn.init.uniform_(layer.bias, -0.5, 0.5, generator=stream)
    return net.eval()


class Backbone(nn.Module):
    """A pretrained encoder with an adapter of its own behind it."""

    def __init__(self, features: int) -> None:
        super().__init__()
        torch.manual_seed(7)  # the same values each time, as a file of weights would bring
        self.net = fold_batch_norms(trained(resnet18(num_classes=features)))
        self.bound = nn.Sigmoid()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return z in [0, 1]."""
        return self.bound(self.net(images))


def backbone(shape: tuple[int, ...], classes: int, net: NetSettings) -> tuple[nn.Module, nn.Module]:
    """Return encoder and head; a user's builder looks like this."""
    return Backbone(net.features), nn.Linear(net.features, classes)


def resnet(shape: tuple[int, ...], classes: int, net: NetSettings) -> tuple[nn.Module, nn.Module]:
    """Return a ResNet with weights of a file and an adapter of our own, and the head."""
    trunk = resnet18()
    trunk.load_state_dict(torch.load(WEIGHTS, weights_only=True))
    adapter = nn.Linear(trunk.fc.in_features, net.features)
    trunk.fc = nn.Identity()
    encoder = nn.Sequential(fold_batch_norms(trunk), adapter, nn.Sigmoid())
    return encoder, nn.Linear(net.features, classes)


def test_a_folded_net_answers_as_before() -> None:
    """ResNet-18 with residual branches, and linear layers: same logits, no BatchNorm left."""
    x = torch.rand(2, 3, 64, 64)
    for net in (
        resnet18(num_classes=5),
        nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 8), nn.BatchNorm1d(8), nn.ReLU()),
    ):
        before = trained(net)(x)
        after = fold_batch_norms(net)
        torch.testing.assert_close(after(x), before, rtol=1e-4, atol=1e-4)
        assert not [m for m in after.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
        assert not list(after.buffers())


def test_a_split_net_keeps_pretrained_parameters() -> None:
    """Built by import string: the encoder is the pretrained one, the head is drawn by the seed."""
    net = NetSettings(name=f"{__name__}:backbone", features=16)
    one, two = (
        split_net.build_net(net, (3, 64, 64), 4, make_generator(seed, "net")) for seed in (0, 1)
    )
    given = Backbone(16).state_dict()
    for built in (one, two):
        assert all(torch.equal(value, given[k]) for k, value in built.encoder.state_dict().items())
    assert not torch.equal(one.head.weight, two.head.weight)  # type: ignore[arg-type]
    bare = nn.Sequential(nn.Linear(4, 4))
    was = bare[0].weight.clone()
    split_net.initialise_parameters(keep_parameters(bare), make_generator(0, "net"))
    assert torch.equal(bare[0].weight, was)


def test_a_trunk_of_a_file_is_kept_and_what_follows_it_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the page on own parts has it: two seeds differ in the adapter alone."""
    weights = tmp_path / "resnet.pt"
    torch.save(trained(resnet18()).state_dict(), weights)
    monkeypatch.setattr(sys.modules[__name__], "WEIGHTS", weights)
    net = NetSettings(name=f"{__name__}:resnet", features=16)
    one, two = (
        split_net.build_net(net, (3, 64, 64), 4, make_generator(seed, "net")) for seed in (0, 1)
    )
    drawn = two.encoder.state_dict()
    changed = {k for k, v in one.encoder.state_dict().items() if not torch.equal(v, drawn[k])}
    assert changed == {"1.weight", "1.bias"}


def test_what_cannot_be_folded_is_refused() -> None:
    """A BatchNorm of the images, one after a shared layer, one without statistics."""
    first = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3))
    blind = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False))
    for net, words in ((first, "follows no convolution"), (blind, "no running statistics")):
        with pytest.raises(NetError, match=words):
            fold_batch_norms(net)
