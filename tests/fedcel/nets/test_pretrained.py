"""Pretrained nets: BatchNorm folded away, parameters kept."""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torchvision.models import resnet18, shufflenet_v2_x0_5
from torchvision.ops import FrozenBatchNorm2d

from fedcel.errors import NetError
from fedcel.nets import ImportedNet, build_net, initialise_parameters
from fedcel.nets.pretrained import ChannelAffine, fold_batch_norms, keep_parameters
from fedcel.settings import NetSettings
from fedcel.torch_state import make_generator
from tests.fedcel.seeded import seeded

WEIGHTS = Path("weights.pt")
IMAGES = torch.rand(2, 3, 64, 64, generator=seeded(4))


def old_weight_norm(layer: nn.Module) -> nn.Module:
    """Return a layer with the hook that PyTorch gave up, which older nets have."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(layer)


def trained(net: nn.Module) -> nn.Module:
    """Return the net with statistics and scales as training would leave them."""
    stream = seeded(0)
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            for values, low in ((layer.running_mean, -0.5), (layer.running_var, 0.5)):
                values.uniform_(low, low + 1, generator=stream)
            nn.init.uniform_(layer.weight, 0.5, 1.5, generator=stream)
            nn.init.uniform_(layer.bias, -0.5, 0.5, generator=stream)
    return net.eval()


class Backbone(nn.Module):
    """A pretrained encoder with an adapter of its own behind it."""

    def __init__(self, features: int) -> None:
        super().__init__()
        torch.manual_seed(7)  # the same values each time, as a file of weights would bring
        self.net = fold_batch_norms(trained(resnet18(num_classes=features)), IMAGES)
        self.bound = nn.Sigmoid()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return z in [0, 1]."""
        return self.bound(self.net(images))


def backbone(shape: tuple[int, ...], classes: int, net: NetSettings) -> tuple[nn.Module, nn.Module]:
    """Return encoder and head; a user's builder looks like this."""
    return Backbone(net.features), nn.Linear(net.features, classes)


def resnet(shape: tuple[int, ...], classes: int, net: ImportedNet) -> tuple[nn.Module, nn.Module]:
    """Return a ResNet with weights of a file and an adapter of our own, and the head."""
    trunk = resnet18()
    trunk.load_state_dict(torch.load(WEIGHTS, weights_only=True))
    adapter = nn.Linear(trunk.fc.in_features, net.features)
    trunk.fc = nn.Identity()
    folded = fold_batch_norms(trunk, torch.rand(4, *shape))
    encoder = nn.Sequential(folded, adapter, nn.Sigmoid())
    return encoder, nn.Linear(net.features, classes)


def test_a_folded_net_answers_as_before() -> None:
    """ResNet-18 with residual branches, and linear layers: same logits, no BatchNorm left."""
    x = IMAGES
    for net in (
        resnet18(num_classes=5),
        nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 8), nn.BatchNorm1d(8), nn.ReLU()),
    ):
        before = trained(net)(x)
        after = fold_batch_norms(net, x)
        torch.testing.assert_close(after(x), before, rtol=1e-4, atol=1e-4)
        assert not [m for m in after.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
        assert not list(after.buffers())


def test_a_split_net_keeps_pretrained_parameters() -> None:
    """Built by import string: the encoder is the pretrained one, the head is drawn by the seed."""
    net = ImportedNet(name=f"{__name__}:backbone", features=16)
    one, two = (build_net(net, (3, 64, 64), 4, make_generator(seed, "net")) for seed in (0, 1))
    given = Backbone(16).state_dict()
    for built in (one, two):
        assert all(torch.equal(value, given[k]) for k, value in built.encoder.state_dict().items())
    assert not torch.equal(one.head.weight, two.head.weight)
    bare = nn.Sequential(nn.Linear(4, 4))
    was = bare[0].weight.clone()
    initialise_parameters(keep_parameters(bare), make_generator(0, "net"))
    assert torch.equal(bare[0].weight, was)


def test_a_trunk_of_a_file_is_kept_and_what_follows_it_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the page on own parts has it: two seeds differ in the adapter alone."""
    weights = tmp_path / "resnet.pt"
    torch.save(trained(resnet18()).state_dict(), weights)
    monkeypatch.setattr(sys.modules[__name__], "WEIGHTS", weights)
    net = ImportedNet(name=f"{__name__}:resnet", features=16)
    one, two = (build_net(net, (3, 64, 64), 4, make_generator(seed, "net")) for seed in (0, 1))
    drawn = two.encoder.state_dict()
    changed = {k for k, v in one.encoder.state_dict().items() if not torch.equal(v, drawn[k])}
    assert changed == {"1.weight", "1.bias"}


def frozen(features: int) -> nn.Module:
    """Return torchvision's BatchNorm of constants, as training would leave them."""
    layer, stream = FrozenBatchNorm2d(features), seeded(1)
    for values in layer.buffers():
        values.uniform_(0.5, 1.5, generator=stream)
    return layer


@pytest.mark.parametrize(
    "layers",
    [
        lambda: (nn.Conv2d(3, 4, 3, bias=False), frozen(4)),
        lambda: (parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), nn.BatchNorm2d(4)),
        lambda: (old_weight_norm(nn.Conv2d(3, 4, 3)), nn.BatchNorm2d(4)),
    ],
    ids=["frozen", "weight_norm", "old weight_norm"],
)
def test_layers_of_other_kinds_are_folded(layers: Callable[[], tuple[nn.Module, ...]]) -> None:
    """The net is as before, its copy a plain layer, and of the same class: it can be cut."""
    net, x = trained(nn.Sequential(*layers(), nn.ReLU())), torch.rand(2, 3, 8, 8)
    before = net(x).detach()
    folded = fold_batch_norms(net, x)
    assert isinstance(folded, nn.Sequential) and type(folded[0]) is nn.Conv2d
    torch.testing.assert_close(folded[:2](x).relu(), before)
    torch.testing.assert_close(net(x), before)
    assert not list(folded.buffers())


class Wired(nn.Sequential):
    """Layers that are called in the order given."""

    def __init__(self, wiring: Callable[..., torch.Tensor], *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.wiring = wiring

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.wiring(images, *self)


class ActivatedNorm(nn.BatchNorm2d):
    """A BatchNorm that does more."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return positive values alone."""
        return super().forward(x).relu()


def twice(x: torch.Tensor, conv: nn.Module, norm: nn.Module) -> torch.Tensor:
    """Call both layers twice."""
    return norm(conv(norm(conv(x))))


def norm_of_two(x: torch.Tensor, conv: nn.Module, norm: nn.Module) -> torch.Tensor:
    return norm(conv(x)) + conv(x)


def beside(x: torch.Tensor, conv: nn.Module, norm: nn.Module) -> torch.Tensor:
    """Use what the convolution gives beside its BatchNorm."""
    y = conv(x)
    return norm(y) + y


def unused(x: torch.Tensor, conv: nn.Module, norm: nn.Module) -> torch.Tensor:
    """Leave the BatchNorm out."""
    return conv(x)


def in_line(x: torch.Tensor, *layers: nn.Module) -> torch.Tensor:
    for layer in layers:
        x = layer(x)
    return x


@pytest.mark.parametrize("wiring", [twice, norm_of_two, beside])
def test_where_nothing_can_be_fused_a_layer_scales_the_channels(
    wiring: Callable[..., torch.Tensor],
) -> None:
    """A layer that serves twice, or whose output is used beside its BatchNorm, stays as it is."""
    net = trained(Wired(wiring, nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3)))
    folded = fold_batch_norms(net, IMAGES)
    torch.testing.assert_close(folded(IMAGES), net(IMAGES))
    assert isinstance(folded[1], ChannelAffine) and torch.equal(folded[0].weight, net[0].weight)


@pytest.mark.parametrize(
    ("wiring", "norm", "words"),
    [
        (unused, nn.BatchNorm2d(3), "BatchNorm '1' is not called; take out"),
        (in_line, ActivatedNorm(3), "answers otherwise: by .* does more than its kind"),
    ],
)
def test_a_fold_that_would_answer_otherwise_is_refused(
    wiring: Callable[..., torch.Tensor], norm: nn.Module, words: str
) -> None:
    """No statistics of a layer that is not called, and nothing but an affine map."""
    net = trained(Wired(wiring, nn.Conv2d(3, 3, 3), norm))
    with pytest.raises(NetError, match=words):
        fold_batch_norms(net, IMAGES)


def test_a_dead_net_is_told() -> None:
    """BatchNorms without a training keep no signal alive once they are folded."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = shufflenet_v2_x0_5(weights=None)
    with pytest.warns(UserWarning, match="says nothing of an image: answers to 2 images differ"):
        fold_batch_norms(net, IMAGES)
    net.fc = nn.Identity()
    with pytest.warns(UserWarning, match="differ by .*e-0[56] of"):
        fold_batch_norms(net, IMAGES)


@pytest.mark.parametrize("normalise", [old_weight_norm, parametrizations.weight_norm])
def test_norms_of_weights_are_drawn_as_those_of_plain_layers(
    normalise: Callable[[nn.Module], nn.Module],
) -> None:
    """Weight and norms fit together: U(-1/8, 1/8) of 64 inputs, of the seed alone."""
    weights = []
    for _ in range(2):
        layer = normalise(nn.Linear(64, 200))
        initialise_parameters(layer, make_generator(3, "net"))
        layer(torch.zeros(1, 64))
        weights.append(layer.weight.detach().clone())
    assert torch.equal(*weights)
    assert weights[0].abs().max() <= 1 / 8
    assert weights[0].std().item() == pytest.approx(1 / 8 / 3**0.5, rel=0.02)


@pytest.mark.parametrize(
    "layers",
    [
        (nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3)),
        (nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(4, 4, 3), nn.BatchNorm2d(4, affine=False)),
        (nn.Flatten(), nn.BatchNorm1d(3 * 64 * 64)),
        (nn.Flatten(2), nn.BatchNorm1d(3)),
        (frozen(3), nn.Conv2d(3, 4, 3)),
    ],
)
def test_a_batch_norm_that_follows_no_layer_scales_the_channels(
    layers: tuple[nn.Module, ...],
) -> None:
    """Of images, behind a transposed convolution, of vectors and sequences, of constants."""
    net = nn.Sequential(*layers).eval()
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            torch.nn.init.uniform_(layer.running_mean, -0.5, 0.5)
            torch.nn.init.uniform_(layer.running_var, 0.5, 1.5)
    folded = fold_batch_norms(net, IMAGES)
    torch.testing.assert_close(folded(IMAGES), net(IMAGES))
    (affine,) = [layer for layer in folded if isinstance(layer, ChannelAffine)]
    is_constant = isinstance(layers[0], FrozenBatchNorm2d)
    assert [part.requires_grad for part in affine.parameters()] == [not is_constant] * 2
    assert not list(folded.buffers())


def test_statistics_of_a_batch_are_refused() -> None:
    """A BatchNorm without running statistics is no map of one image."""
    blind = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False))
    with pytest.raises(NetError, match="no running statistics"):
        fold_batch_norms(blind, IMAGES)


def test_a_folded_bias_is_trained_and_a_frozen_layer_stays_frozen() -> None:
    """A convolution without a bias gets one from its BatchNorm, which learns as the weight does."""
    for is_trained in (True, False):
        trunk = nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.BatchNorm2d(2), nn.Flatten())
        trunk.requires_grad_(is_trained)
        folded = fold_batch_norms(trunk, torch.rand(4, 1, 5, 5))
        assert [part.requires_grad for part in folded.parameters()] == [is_trained] * 2
