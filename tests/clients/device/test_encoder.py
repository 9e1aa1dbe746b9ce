"""An encoder as it arrives: built only of known parts, whatever the service says."""

import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from clients.device.encoder import read_encoder, read_metadata
from clients.service import load_served
from clients.service_messages import EncoderCard, ModelCard, PriceCard
from fedcel.errors import ServiceError
from fedcel.nets import Cut, SplitNet
from tests.clients.serving import made_run

RUN = made_run()
MODEL = load_served(RUN)
NET: dict[str, Any] = MODEL.net_settings.model_dump(by_alias=True)


def card(data: bytes, **changes: object) -> ModelCard:
    right: dict[str, Any] = {
        "model": MODEL.version,
        "shape": [1, 8, 8],
        "features": 8,
        "classes": 10,
        "samples": 3,
        "sigma": 0.3,
        "dropout": 0.0,
        "largest": 1e6,
        "mechanism": "laplace",
        "clip": 1.0,
        "clip_kind": "l1",
        "epsilon": 4.0,
        "delta": 0.0,
        "price": PriceCard(answer=4.0, uncertainty=4.0),
        "encoder": EncoderCard(url="", sha256=sha256(data).hexdigest(), bytes=len(data)),
    }
    return ModelCard(**{**right, **changes})


def file(
    changes: dict[str, Any] | None = None,
    tensors: dict[str, Any] | None = None,
    noise_shape: str = "one",
) -> bytes:
    """Return the encoder's file with other settings, tensors or shape of the noise."""
    metadata = read_metadata(MODEL.encoder) | {"noise-shape": noise_shape}
    if changes:
        metadata["net"] = json.dumps(NET | changes)
    return save(load(MODEL.encoder) if tensors is None else tensors, metadata)


def test_the_encoder_arrives_as_it_was_served() -> None:
    """The same codes, the same cut, no gradient."""
    net = read_encoder(card(MODEL.encoder), MODEL.encoder)
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(net.encode(x), MODEL.net.encode(x).detach())
    assert net.cut == MODEL.net.cut
    assert not any(parameter.requires_grad for parameter in net.parameters())


@pytest.mark.parametrize(
    ("data", "changes", "words"),
    [
        (b"", {}, "cannot be used"),
        (b"\xff" * 90, {}, "cannot be used"),
        (MODEL.encoder[:-4], {}, "cannot be used"),
        (file(changes={"name": "os:system"}), {}, "pass your own"),
        (file(changes={"name": "vgg"}), {}, "cannot be used"),
        (file(changes={"width": 2**40}), {}, "do not fit"),
        (file(changes={"width": -1}), {}, "cannot be used"),
        (file(changes={"bound": "eval"}), {}, "cannot be used"),
        (file(changes={"name": "cnn"}), {}, "do not fit"),
        (file(tensors={}), {}, "do not fit"),
        (file(noise_shape="feature"), {}, "do not fit"),
        (file(noise_shape="eval"), {}, "cannot be used"),
        (file(tensors={k: v.double() for k, v in load(MODEL.encoder).items()}), {}, "do not fit"),
        (MODEL.encoder, {"model": "0" * 32}, "another model"),
        (MODEL.encoder, {"shape": [1, 64, 1]}, "another model"),
        (MODEL.encoder, {"shape": [1, 8, -8]}, "another model"),
        (MODEL.encoder, {"shape": []}, "no cut"),
        (MODEL.encoder, {"features": 9}, r"must be \(1, 9\)"),
        (MODEL.encoder, {"sigma": -1.0}, "no cut"),
        (MODEL.encoder, {"sigma": float("nan")}, "no cut"),
        (MODEL.encoder, {"dropout": 1.0}, "no cut"),
    ],
)
def test_what_does_not_fit_is_refused(data: bytes, changes: dict[str, Any], words: str) -> None:
    """A plug-in's name, sizes that would fill the memory, other tensors, an odd cut."""
    with pytest.raises(ServiceError, match=words):
        read_encoder(card(data, **changes), data)


def test_another_file_than_stated_is_refused() -> None:
    with pytest.raises(ServiceError, match="not the one"):
        read_encoder(card(MODEL.encoder), file(changes={"width": 17}))


def test_a_callers_own_encoder_takes_the_tensors() -> None:
    """For nets that are not the project's: code comes from the caller, values from the service."""
    own_encoder = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 8), nn.Sigmoid()
    )
    data = file(changes={"name": "mine:build"})
    net = read_encoder(card(data), data, own_encoder)
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(net.encode(x), MODEL.net.encode(x).detach())
    with pytest.raises(ServiceError, match="do not fit"):
        read_encoder(card(data), data, nn.Sequential(nn.Flatten(), nn.Linear(64, 8)))


def test_layers_that_share_a_parameter_share_the_new_one() -> None:
    """It has one name, which only one of the layers would be given."""
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    second.weight = first.weight
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), first, nn.Tanh(), second)
    net = SplitNet(encoder, nn.Linear(8, 3), Cut(0.1), 8)
    tensors = {name: torch.randn(part.shape) for name, part in encoder.named_parameters()}
    net.load_device_parameters(tensors)
    assert torch.equal(second.weight, tensors["2.weight"]) and second.weight is first.weight


class Wrapped(nn.Module):
    """An encoder of the caller's with something done to images before it."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.change = change
        layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 8))
        for name, layer in layers.named_children():
            self.add_module(name, layer)

    def forward(self, images: Tensor) -> Tensor:
        x = self.change(images)
        for layer in self.children():
            x = layer(x)
        return x.sigmoid()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x - x.mean(0), "by the other images of its batch"),
        (lambda x: x + torch.rand_like(x), "it draws random numbers"),
        (lambda x: {"images": x}["image"], "KeyError: 'image' .*test_encoder.py, line"),
    ],
)
def test_a_callers_encoder_that_cannot_be_measured_is_refused(
    change: Callable[[Tensor], Tensor], words: str
) -> None:
    """Its features would not be those that were measured."""
    data = file(changes={"name": "mine:build"})
    with pytest.raises(ServiceError, match=f"cannot be used: .*{words}"):
        read_encoder(card(data), data, Wrapped(change))


def test_a_callers_encoder_changes_no_image() -> None:
    """One that works in place gets copies."""
    data = file(changes={"name": "mine:build"})
    net = read_encoder(card(data), data, Wrapped(lambda x: x.mul_(0.5)))
    x = torch.rand(3, 1, 8, 8)
    before = x.clone()
    assert torch.equal(net.encode(x), MODEL.net.encode(before / 2).detach())
    assert torch.equal(x, before)


@pytest.mark.parametrize(("name", "shape"), [("learned-noise", "feature"), ("vib", "image")])
def test_learned_noise_arrives_with_the_encoder(name: str, shape: str) -> None:
    """The same law on the device: scale, cut, likelihood; what does not fit is refused."""
    run = made_run(**{"defence.name": name})
    scale = run.flat.net.noise_scale
    assert scale is not None
    stream = torch.Generator().manual_seed(4)
    vectors = [vector.clone() for vector in run.samples]
    start = run.flat.device_size - sum(part.numel() for part in scale.parameters())
    drawn = torch.randn(run.flat.device_size - start, generator=stream)
    for vector in vectors:
        vector[start : run.flat.device_size] = drawn
    model = load_served(run._replace(model=vectors[-1], samples=vectors))
    data = model.encoder
    net = read_encoder(card(data, model=model.version), data)
    z = net.encode(torch.rand(3, 1, 8, 8))
    theirs, ours = model.net.scale_noise(z), net.scale_noise(z)
    assert theirs is not None
    assert ours is not None
    assert torch.equal(ours, theirs)
    assert ours.std() > 0.1
    assert net.noise_shape == shape
    assert not any(parameter.requires_grad for parameter in net.parameters())
    without = {name: part for name, part in load(data).items() if "noise_scale" not in name}
    broken = save(without, read_metadata(data))
    with pytest.raises(ServiceError, match="do not fit its net"):
        read_encoder(card(broken, model=model.version), broken)
    assert model.version != load_served(made_run()).version
