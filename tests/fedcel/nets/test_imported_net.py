"""Models of a user's own, named by an import string and cut at a layer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedcel.errors import NetError
from fedcel.nets import FlatNet, NetSettings, SplitNet, build_net

SHAPE = (3, 8, 8)
CUT = {"name": f"{__name__}:Plain", "cut": "layers.2", "features": 36}


class Plain(nn.Module):
    """A model as users have them, with a BatchNorm and dropout."""

    def __init__(self, num_classes: int = 7) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(), nn.Conv2d(4, 4, 3)
        )
        self.fc = nn.Linear(4, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.fc(self.layers(images).mean((2, 3)))
        return logits


def make_trained() -> nn.Module:
    """Return a model whose weights and statistics are the user's, for seven classes."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Plain()
        model(4 * torch.rand(16, *SHAPE))
    return model


def make_of_timm(num_classes: int) -> nn.Module:
    """Return a model that says how its images are normalised."""
    model = Plain(num_classes)
    model.pretrained_cfg = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.1)}  # type: ignore[assignment]
    return model


def make_halves() -> tuple[nn.Module, nn.Module]:
    """Return encoder and head."""
    return nn.Flatten(), nn.Linear(192, 7)


def make_nothing() -> None:
    """Return no module."""


def make_failing(num_classes: int) -> nn.Module:
    """Fail."""
    raise KeyError("layer seven")


def build(classes: int = 7, seed: int = 1, **keys: object) -> SplitNet:
    """Build the net of some keys."""
    settings = NetSettings.model_validate(CUT | keys)
    return build_net(settings, SHAPE, classes, torch.Generator().manual_seed(seed))


def test_halves_answer_as_the_model() -> None:
    """Its own parameters and statistics stay, in evaluation; no normalisation is added."""
    net, x = build(name=f"{__name__}:make_trained", features=0), torch.rand(5, *SHAPE)
    with torch.no_grad():
        wanted = make_trained().eval()(x)
        torch.testing.assert_close(net.answer(net.encode(x)), wanted, atol=1e-5, rtol=1e-5)
    assert net.features == 4 * 36 and net.positions == 36


def test_a_factory_is_told_the_number_of_classes() -> None:
    """A model of random parameters is of the seed; an adapter bounds D features."""
    one, two, other = build(3), build(3), build(3, seed=2)
    x = torch.rand(2, *SHAPE)
    assert one.answer(one.encode(x)).shape == (2, 3)
    assert torch.equal(FlatNet(one).vector, FlatNet(two).vector)
    assert not torch.equal(FlatNet(one).vector, FlatNet(other).vector)
    z = one.encode(x).detach()
    assert z.shape == (2, 36) and 0 <= float(z.min()) <= float(z.max()) <= 1


def test_weights_of_a_file_and_a_frozen_encoder(tmp_path: Path) -> None:
    """As of a library's model."""
    model = make_trained()
    checkpoint = {"state_dict": model.state_dict(), "hyper_parameters": {"num_classes": 7}}
    torch.save(checkpoint, tmp_path / "own.ckpt")  # as Lightning does
    net = build(weights=str(tmp_path / "own.ckpt"), features=0)
    x = torch.rand(2, *SHAPE)
    with torch.no_grad():
        torch.testing.assert_close(net.answer(net.encode(x)), model.eval()(x))
    frozen = build(name=f"{__name__}:make_trained", features=0, frozen="encoder")
    assert not frozen.device_parameters()
    head = sum(parameter.numel() for parameter in frozen.head.parameters())
    assert FlatNet(frozen).vector.numel() == head


def test_the_normalisation_that_a_model_states() -> None:
    """As models of timm do."""
    net = build(name=f"{__name__}:make_of_timm", features=0)
    means = torch.tensor([0.5, 0.4, 0.3])[:, None, None].expand(1, *SHAPE)
    bias = net.encoder[1](torch.zeros(1, *SHAPE)).flatten(1)
    torch.testing.assert_close(net.encode(means), bias)


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ({"cut": "layers.9"}, NetError, "which Plain does not have; cut at one of layers, "),
        ({"cut": "none", "weights": "a.pth"}, ValueError, "net.cut is 'none'"),
        ({"cut": "none", "features": 0}, ValueError, "must be 1 or more"),
        ({"cut": "none"}, NetError, "is a model and net.cut is 'none'; name the layer"),
        ({"name": f"{__name__}:make_halves"}, NetError, "not tuple; leave net.cut out"),
        ({"name": f"{__name__}:make_nothing"}, NetError, "not NoneType"),
        ({"name": f"{__name__}:make_failing"}, NetError, "failed: KeyError: 'layer seven'"),
        ({"name": f"{__name__}:make_trained", "classes": 3}, NetError, r"must be \(B, 3\)"),
    ],
)
def test_refusals(keys: dict[str, Any], error: type[Exception], message: str) -> None:
    """Each says what is wrong and what is possible."""
    with pytest.raises(error, match=message):
        build(**keys)
