"""Models of torchvision and timm as split nets: same answers, weights from files, frozen halves."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedcel.errors import NetError
from fedcel.nets import FlatNet, NetSettings, SplitNet, build_net, measure_cost
from fedcel.nets.library_net import (
    Normalise,
    find_channels,
    find_normalisation,
    load_weights,
    make_model,
    measure_statistics,
)

models = pytest.importorskip("torchvision").models
NAME = "torchvision:shufflenet_v2_x0_5"
CUT = {"name": NAME, "cut": "stage2", "features": 64}
SHAPE = (3, 32, 32)
"""Of which `stage2` makes 48 channels at 16 positions."""


def build(
    classes: int = 10, seed: int = 1, shape: tuple[int, ...] = SHAPE, **keys: object
) -> SplitNet:
    settings = NetSettings.model_validate(CUT | keys)
    return build_net(settings, shape, classes, torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    """Return a model with statistics in its BatchNorms, as a training leaves them."""
    torch.manual_seed(0)
    model: nn.Module = models.shufflenet_v2_x0_5(num_classes=10)
    measure_statistics(model, torch.randn(16, *SHAPE))
    return model.eval()


@pytest.fixture(scope="module")
def files(trained: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the model's parameters in every form."""
    folder = tmp_path_factory.mktemp("weights")
    tensors = {name: tensor.clone() for name, tensor in trained.state_dict().items()}
    save_file(tensors, folder / "own.safetensors")
    torch.save(tensors, folder / "own.pth")
    torch.save({"model": tensors, "epoch": 3}, folder / "checkpoint.pt")
    torch.save({"epoch": 3}, folder / "empty.pt")
    torch.save(models.squeezenet1_1(num_classes=10).state_dict(), folder / "other.pth")
    torch.save(models.shufflenet_v2_x1_0(num_classes=10).state_dict(), folder / "wider.pth")
    (folder / "broken.pth").write_bytes(b"no weights")
    torch.save(nn.Linear(2, 2), folder / "whole.pth")
    return folder


@pytest.mark.parametrize("file", ["own.safetensors", "own.pth", "checkpoint.pt"])
def test_halves_answer_as_the_model(file: str, trained: nn.Module, files: Path) -> None:
    """Without an adapter, on images in [0, 1], BatchNorms folded and dropout off."""
    settings = {"name": NAME, "cut": "stage2", "weights": str(files / file), "features": 0}
    net = build_net(NetSettings.model_validate(settings), SHAPE, 10, torch.Generator())
    x = torch.rand(5, *SHAPE)
    with torch.no_grad():
        wanted = trained(Normalise(*find_normalisation(NAME))(x))
        torch.testing.assert_close(net.answer(net.encode(x)), wanted, atol=1e-4, rtol=1e-4)
    assert net.features == 48 * 16 and net.positions == 16


@pytest.mark.parametrize(("features", "positions"), [(64, 16), (15, 1)])
def test_an_adapter_bounds_the_features(features: int, positions: int, files: Path) -> None:
    """D features in [0, 1], of as many positions as the cut has, or of all; none is constant."""
    net = build(features=features, weights=str(files / "own.pth"))
    z = net.encode(torch.rand(50, *SHAPE)).detach()
    assert z.shape == (50, features) and net.positions == positions
    assert 0 <= float(z.min()) < float(z.max()) <= 1
    assert float(z.std(0).min()) > 0.1
    assert net.answer(z).shape == (50, 10)


def test_a_frozen_encoder_is_not_sent(files: Path) -> None:
    """Of the device's half the adapter alone is trained; constants come from the file."""
    weights = str(files / "own.pth")
    net, other = (build(weights=weights, frozen="encoder", seed=seed) for seed in (1, 2))
    assert [*net.device_parameters()] == ["3.weight", "3.bias"]
    whole = build(weights=weights)
    assert FlatNet(whole).vector.numel() > FlatNet(net).vector.numel()
    image = torch.zeros(SHAPE)
    assert measure_cost(net, image) == measure_cost(whole, image)  # it holds what is frozen, too
    (constant,) = [own for name, own in net.encoder.named_buffers() if name == "1.conv1.0.weight"]
    assert torch.equal(constant, dict(other.encoder.named_buffers())["1.conv1.0.weight"])
    assert not torch.equal(
        net.device_parameters()["3.weight"], other.device_parameters()["3.weight"]
    )


def test_clients_are_stacked() -> None:
    """K copies encode as one by one."""
    one, two = (FlatNet(build(), count) for count in (1, 2))
    x = torch.rand(2, 3, *SHAPE)
    two.load(one.vector)
    alone = one.encode(x.flatten(0, 1)[None])
    torch.testing.assert_close(two.encode(x).flatten(0, 1)[None], alone, atol=1e-5, rtol=1e-5)


def test_a_new_last_layer_for_other_classes(files: Path) -> None:
    """Weights of ten classes serve a net of three: its last layer is new."""
    net = build(classes=3, weights=str(files / "own.pth"))
    assert net.answer(net.encode(torch.rand(2, *SHAPE))).shape == (2, 3)


@pytest.mark.parametrize(
    ("shape", "aspect", "axis"),
    [
        ((64,), 1.0, 0),
        ((197, 768), 1.0, 1),
        ((8, 4, 4), 1.0, 0),
        ((4, 4, 8), 1.0, 2),
        ((4, 4, 4), 1.0, 0),
        ((8, 8, 4), 2.0, 0),
        ((8, 4, 4), 2.0, 2),
        ((7, 12, 5), 7 / 12, 2),
        ((64, 7, 5), 4 / 3, 0),
    ],
)
def test_axis_of_the_channels(shape: tuple[int, ...], aspect: float, axis: int) -> None:
    """Vectors, tokens, maps with channels first and last, of square and of high images."""
    assert find_channels(shape, aspect) == axis


def test_counters_of_one_value_are_loaded(trained: nn.Module, tmp_path: Path) -> None:
    """Older files hold `num_batches_tracked` in a vector of one value, also beside one class."""
    state = trained.state_dict()
    counters = {name for name in state if name.endswith("num_batches_tracked")}
    assert counters
    torch.save(
        {name: t.reshape(1) if name in counters else t for name, t in state.items()},
        tmp_path / "old.pth",
    )
    fresh = make_model(NAME, 10)
    for classes in (10, 1, None):
        load_weights(fresh, tmp_path / "old.pth", classes)
        for name, tensor in fresh.state_dict().items():
            assert torch.equal(tensor, state[name])


@pytest.mark.filterwarnings("ignore:The default weight init:FutureWarning")
@pytest.mark.parametrize(
    ("name", "cut"),
    [("densenet121", "features.transition1"), ("googlenet", "inception3a")],
)
def test_layers_that_are_not_folded(name: str, cut: str) -> None:
    """BatchNorms before a convolution; layers that only a training calls."""
    net = build(name=f"torchvision:{name}", cut=cut, features=0)
    assert net.answer(net.encode(torch.rand(2, *SHAPE))).shape == (2, 10)
    assert not any("aux" in key or "BatchNorm" in key for key, _ in net.named_parameters())


@pytest.mark.parametrize("name", ["timm:resnet18", "timm:efficientnet_lite0"])
def test_models_of_timm(name: str) -> None:
    """A BatchNorm with an activation in it is folded, too."""
    pytest.importorskip("timm", reason="timm is not installed")
    cut = {"timm:resnet18": "layer2", "timm:efficientnet_lite0": "blocks.2"}[name]
    settings = {"name": name, "cut": cut, "features": 64}
    net = build_net(NetSettings.model_validate(settings), SHAPE, 10, torch.Generator())
    assert net.encode(torch.rand(2, *SHAPE)).shape == (2, 64)


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ({"cut": "none"}, ValueError, "name the layer that is sent"),
        ({"frozen": "encoder"}, ValueError, "give net.weights"),
        ({"width": 64}, ValueError, "net.width is of net.name 'mlp'"),
        ({"cut": "stage7"}, NetError, "cut at one of .*stage"),
        (
            {"features": 65},
            NetError,
            "must be a multiple of 16 or below it: .* 48 channels at 16 positions",
        ),
        ({"name": "torchvision:resnet81"}, NetError, "nearest of torchvision: resnet"),
        ({"weights": "/nowhere.pth"}, NetError, "cannot be read"),
        (
            {"name": "torchvision:vit_b_32", "cut": "encoder.ln"},
            NetError,
            r"'torchvision:vit_b_32' takes no images of shape \(3, 32, 32\): .*; set data.size",
        ),
        (
            {"name": "torchvision:vgg11", "cut": "features.5", "shape": (3, 8, 8)},
            NetError,
            r"takes no images of shape \(3, 8, 8\): .*too small; set data.size",
        ),
    ],
)
def test_refusals(keys: dict[str, Any], error: type[Exception], message: str) -> None:
    """Each says what is wrong and what is possible."""
    with pytest.raises(error, match=message):
        build(**keys)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (
            "other.pth",
            "other.pth' are of another model than ShuffleNetV2: it lacks conv1.0.weight, .* and "
            r"\d+ more; the model lacks its features.0.weight, .* more",
        ),
        ("wider.pth", r"of another shape is .*stage2.0.*\(\d+, .*\) for \(\d+, "),
        ("empty.pt", "holds no parameters by name"),
        ("broken.pth", "hold something else than tensors, such as a whole module"),
        ("whole.pth", r"hold something else than tensors, .* save model.state_dict\(\) to a file$"),
    ],
)
def test_weights_that_do_not_fit(file: str, message: str, files: Path) -> None:
    """Weights of another net, a checkpoint without any, a damaged file."""
    with pytest.raises(NetError, match=message):
        build(weights=str(files / file))
