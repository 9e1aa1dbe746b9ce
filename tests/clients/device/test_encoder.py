"""An encoder as it arrives: built only of known parts, whatever the service says."""

import json
from hashlib import sha256
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from clients.device.encoder import read_encoder, read_metadata
from clients.service import load_served
from clients.service_messages import EncoderCard, ModelCard, PriceCard
from fedcel.errors import ServiceError
from tests.clients.serving import made_run

RUN = made_run()
MODEL = load_served(RUN)
NET: dict[str, Any] = MODEL.net_settings.model_dump(by_alias=True)


def card(data: bytes, **changes: object) -> ModelCard:
    """Return the card that fits a file."""
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


def file(changes: dict[str, Any] | None = None, tensors: dict[str, Any] | None = None) -> bytes:
    """Return the encoder's file with other settings or tensors."""
    metadata = read_metadata(MODEL.encoder)
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
        (file(changes={"name": "vgg"}), {}, "pass your own"),
        (file(changes={"width": 2**40}), {}, "do not fit"),
        (file(changes={"width": -1}), {}, "cannot be used"),
        (file(changes={"bound": "eval"}), {}, "cannot be used"),
        (file(changes={"name": "cnn"}), {}, "do not fit"),
        (file(tensors={}), {}, "do not fit"),
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
    """By its digest."""
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
