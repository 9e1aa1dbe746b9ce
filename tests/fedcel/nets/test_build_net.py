"""Split nets: shapes, bounds, and what is refused."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn
from torchvision.models import SwinTransformer

from fedcel.data import Images
from fedcel.errors import NetError
from fedcel.nets import ResNet, SplitNet, Vgg11
from fedcel.nets.build_net import build_net
from fedcel.runs import read_run
from fedcel.settings import DataSettings, NetSettings, parse_settings
from fedcel.torch_state import make_generator
from sims.engines.simulate import simulate
from tests.fedcel.seeded import seeded


def build(name: str, shape: tuple[int, ...] = (1, 4, 4), seed: int = 0, **keys: object) -> SplitNet:
    """Build a net of three classes by its name; one of this file by its function's."""
    ref = f"{__name__}:{name}" if name in globals() else name
    settings = NetSettings.model_validate({"name": ref, **keys})
    return build_net(settings, shape, 3, make_generator(seed, "net"))


@pytest.mark.parametrize(
    ("name", "side"), [("mlp", 8), ("cnn", 28), ("cnn", 32), ("strided", 28), ("strided", 9)]
)
def test_features_are_bounded_and_shapes_fit(name: str, side: int) -> None:
    """Even for huge parameters: |z|^2 <= D."""
    net = build(name, (1, side, side))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(50)
        z = net.encode(torch.rand(3, 1, side, side))
        assert z.shape == (3, 64)
        assert (z.square().sum(1) <= 64 + 1e-3).all()
        assert net.answer(z).shape == (3, 3)


def too_small(shape: object, classes: int, net: NetSettings) -> tuple[nn.Module, nn.Module]:
    """Build an encoder for other images."""
    return nn.Sequential(nn.Flatten(), nn.Linear(9, 4)), nn.Linear(4, classes)


def not_a_pair(shape: object, classes: int, net: NetSettings) -> nn.Module:
    return nn.Linear(16, classes)


def prelu(shape: object, classes: int, net: NetSettings) -> tuple[nn.Module, nn.Module]:
    """Build an encoder with an embedding-like parameter drawn outside Linear and Conv2d."""
    return nn.Sequential(nn.Flatten(1, 2), nn.Conv1d(4, 1, 1), nn.Flatten()), nn.Linear(4, classes)


def test_layers_of_any_kind_are_drawn_from_the_seed() -> None:
    """A Conv1d is not redrawn by us; the global state still plays no part and is left alone."""
    torch.manual_seed(1)
    a = build("prelu", seed=4)
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(1))
    b = build("prelu", seed=4)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("cnn", (1, 30, 30), "sides must divide by 4"),
        ("vgg11", (1, 28, 32), "images are 28x32, sides must divide by 8; set data.size"),
        ("vgg11", (1, 40, 32), "net.features is 64, must be a multiple of 80, the 10x8 .* 640"),
        ("resnet", (1, 28, 32), "images are 28x32, sides must divide by 8; set data.size"),
        ("resnet", (1, 40, 32), "net.features is 64, must be a multiple of 20, the 5x4 .* 160"),
        ("too_small", (1, 4, 4), "does not fit images of shape"),
        ("not_a_pair", (1, 4, 4), r"gave .* unpack|must return \(encoder, head\)"),
        ("math:pi", (1, 4, 4), "cannot be called"),
        ("os:getcwd", (1, 4, 4), "failed: TypeError: .*argument"),
    ],
)
def test_what_cannot_be_split_is_refused(name: str, shape: tuple[int, ...], message: str) -> None:
    """With the reason and the remedy."""
    with pytest.raises(NetError, match=message):
        build(name, shape)


@pytest.mark.parametrize(("name", "width", "step"), [("vgg11", 24, 16), ("resnet", 48, 32)])
def test_widths_that_do_not_fit_are_refused(name: str, width: int, step: int) -> None:
    """GroupNorm has groups of 8 channels, of a part of the width in the first block."""
    with pytest.raises(NetError, match=f"net.width is {width}, must be a multiple of {step}"):
        build(name, (1, 32, 32), width=width)


def with_two_faults(shape: object, classes: int, net: NetSettings) -> tuple[nn.Module, nn.Module]:
    """Build a net with BatchNorm and dropout, whose head shares a layer."""
    last = nn.Linear(classes, classes)
    norm = nn.BatchNorm1d(classes)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, classes), norm, nn.Dropout(), last), last


def test_all_faults_of_a_net_are_said_at_once() -> None:
    """One line each, so that one run finds them all."""
    with pytest.raises(NetError) as refusal:
        build("with_two_faults")
    lines = str(refusal.value).splitlines()
    assert len(lines) == 3
    faults = (
        "'encoder.2' (BatchNorm1d): statistics mix examples",
        "'encoder.3' (Dropout): draws from global random state",
        "the head's parameter 'weight', 'bias', too",
    )
    assert all(words in line for line, words in zip(lines, faults, strict=True))


class Whitened(nn.Module):
    """Normalises features by the batch."""

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return z / (z.std(0, correction=0) + 1)


def with_faulty_values(
    shape: object, classes: int, net: NetSettings
) -> tuple[nn.Module, nn.Module]:
    """Build a net with dropout whose images depend on each other, and with a class too many."""
    linear = nn.Linear(16, 4)
    encoder = nn.Sequential(nn.Flatten(), nn.Dropout(), linear, Whitened())
    return encoder, nn.Linear(4, classes + 1)


def test_faults_of_layers_and_values_are_said_at_once() -> None:
    """What the layers are, what the head returns, and what the contract says of the features."""
    with pytest.raises(NetError) as refusal:
        build("with_faulty_values")
    lines = str(refusal.value).splitlines()
    for line, words in zip(
        lines, ("'encoder.1' (Dropout)", "must be (B, 3)", "each image by itself"), strict=True
    ):
        assert words in line


class Tables(nn.Module):
    """Normalises by constants, and counts its calls if it is asked to."""

    def __init__(self, *, counts: bool) -> None:
        super().__init__()
        self.counts = counts
        self.register_buffer("mean", torch.tensor([0.5]))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.counts:
            self.calls = self.calls + 1
        return (images - self.get_buffer("mean")).flatten(1)


def constant(shape: object, classes: int, net: NetSettings) -> tuple[nn.Module, nn.Module]:
    """Build an encoder with constant buffers."""
    return nn.Sequential(Tables(counts=False), nn.Linear(16, 4)), nn.Linear(4, classes)


def counting(shape: object, classes: int, net: NetSettings) -> tuple[nn.Module, nn.Module]:
    """Build an encoder with a buffer that moves."""
    return nn.Sequential(Tables(counts=True), nn.Linear(16, 4)), nn.Linear(4, classes)


def swin(shape: object, classes: int, net: NetSettings) -> tuple[nn.Module, nn.Module]:
    """Build torchvision's transformer with shifted windows, whose dropout is off."""
    trunk = SwinTransformer([4, 4], 12, [2], [2], [2, 2], stochastic_depth_prob=0.0, num_classes=8)
    return nn.Sequential(trunk, nn.Sigmoid()), nn.Linear(8, classes)


def test_constant_buffers_are_no_fault_and_others_are() -> None:
    """Means of channels and tables of positions are built with the net, and stay."""
    for name, shape in (("constant", (1, 4, 4)), ("swin", (3, 16, 16))):
        net = build(name, shape)
        before = net.encode(torch.ones(2, *shape))
        given = {key: value.clone() for key, value in net.device_parameters().items()}
        net.load_device_parameters(given)
        assert torch.equal(net.encode(torch.ones(2, *shape)), before)
    with pytest.raises(NetError, match=r"buffer 'encoder.0.calls' is changed by a forward pass"):
        build("counting")


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_transformer_is_trained(tmp_path: Path, at_once: int) -> None:
    """Its tables follow it through an engine and a run folder, of clients at once as well."""
    settings = parse_settings(
        {
            "net.name": f"{__name__}:swin",
            "data.size": 16,
            "data.source": f"{__name__}:colours",
            "data.validation": 10,
            "data.auxiliary": 10,
            "data.test": 20,
            "clients": 2,
            "rounds": 2,
            "local.steps": 2,
            "temperature": 0.0,
            "engine": "local",
            "local.at-once": at_once,
        }
    )
    simulate(settings, tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert run.flat.net.encode(run.splits.test.x).shape == (20, 8)


def colours(data: DataSettings) -> tuple[Images, None]:
    x = torch.rand(80, 3, 16, 16, generator=seeded(0))
    return Images(x, torch.arange(80) % 4), None


@pytest.mark.parametrize(("side", "features"), [(32, 512), (8, 20)])
def test_vgg11_is_cut_after_its_second_block(side: int, features: int) -> None:
    """Eight 3x3 convolutions, two 1x1 at the cut; bounded D."""
    net = build("vgg11", (3, side, side), width=16, features=features)
    sizes = [
        [layer.kernel_size[0] for layer in half.modules() if isinstance(layer, nn.Conv2d)]
        for half in (net.encoder, net.head)
    ]
    assert sizes == [[3] * 2 + [1], [1] + [3] * 6]
    z = net.encode(torch.rand(2, 3, side, side, generator=make_generator(0, "x")))
    assert z.shape == (2, features) and z.min() > 0 and z.max() < 1
    assert net.answer(z).shape == (2, 3)


def test_vgg11_at_its_own_width() -> None:
    """Parameters by hand: 9 k^2 in out + out a layer, two a channel for GroupNorm, 1x1 at the cut.

    Widths 64, 128, 256, 256, 512, 512, 512, 512; D = 512 of 8 channels; 10 classes.
    """
    net = build_net(Vgg11(features=512), (3, 32, 32), 10, make_generator(0, "net"))
    wide = [3, 64, 128, 256, 256, 512, 512, 512, 512]
    own = [9 * a * b + 3 * b for a, b in pairwise(wide)]
    count = [sum(p.numel() for p in half.parameters()) for half in (net.encoder, net.head)]
    assert count == [sum(own[:2]) + 129 * 8, sum(own[2:]) + 9 * 128 + 513 * 10] == [77064, 9156234]


def test_resnet_is_cut_before_its_last_block() -> None:
    """Parameters by hand: two convolutions a block, a shortcut where sides change; at its width.

    9 in out and 9 out^2 of convolutions, 2 in + 2 out of GroupNorm, in out of the shortcut.
    """
    net = build_net(ResNet(features=128, width=64), (3, 32, 32), 10, make_generator(0, "net"))
    pairs = [(16, 16), (16, 32), (32, 64), (64, 64)]
    blocks = [9 * a * b + 9 * b * b + 2 * a + 2 * b + a * b * (a != b) for a, b in pairs]
    first, sent, answer = 16 * (27 + 1), 2 * 64 + 8 * 64 + 8 + 2 * 8, 9 * 64 + 2 * 64 + 65 * 10
    count = [sum(p.numel() for p in half.parameters()) for half in (net.encoder, net.head)]
    assert count == [first + sum(blocks[:3]) + sent, blocks[3] + answer] == [77752, 75338]
    z = net.encode(torch.rand(2, 3, 32, 32, generator=make_generator(0, "x")))
    assert z.shape == (2, 128) and z.min() > 0 and z.max() < 1
    assert net.answer(z).shape == (2, 10)
