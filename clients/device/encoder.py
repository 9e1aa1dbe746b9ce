"""The device's half of the net, built from what a service sends, which may be hostile."""

import json
from hashlib import sha256

import torch
from pydantic import TypeAdapter
from safetensors.torch import load
from torch import Tensor, nn

from clients.service_messages import ModelCard
from fedcel.errors import NetError, ServiceError, describe_unforeseen
from fedcel.nets import (
    Cut,
    NetSettings,
    NoiseShape,
    OwnNet,
    SplitNet,
    build_noise_scale,
    encode_images,
    switch_to_evaluation,
)

NOISE_SHAPES = TypeAdapter[NoiseShape](NoiseShape)
MAX_ENCODER_BYTES = 256 * 2**20
TRIAL_IMAGES = 3  # that a received encoder is tried with, each by itself too


def read_encoder(card: ModelCard, data: bytes, own_encoder: nn.Module | None = None) -> SplitNet:
    """Return the split net of a service's encoder; its head is never used.

    Only the project's own nets are built from a message; `own_encoder` is the caller's module where
    the service names another. ServiceError when card and file do not fit together or to such a net.
    """
    if sha256(data).hexdigest() != card.encoder.sha256:
        raise ServiceError("the encoder is not the one that /v1/model states; fetch both again")
    try:
        tensors = load(data)
        metadata = read_metadata(data)
        net_settings = NetSettings.model_validate(json.loads(metadata["net"]))
        noise_shape = NOISE_SHAPES.validate_python(metadata["noise-shape"])
        cut = Cut(card.sigma, card.dropout)
        stated = metadata["model"], json.loads(metadata["shape"]), int(metadata["classes"])
    except Exception as error:  # of whatever a hostile file makes of its readers
        raise ServiceError(f"the encoder's file cannot be used: {type(error).__name__}") from None
    if not (card.sigma >= 0 and 0 <= card.dropout < 1 and len(card.shape) == 3):
        raise ServiceError(f"{cut} of images {card.shape} is no cut that a device can make")
    if stated != (card.model, card.shape, card.classes):
        raise ServiceError("the encoder is of another model than /v1/model states")
    encoder = own_encoder or build_encoder(net_settings, tuple(card.shape), card.classes)
    with torch.device("meta"):
        scale = build_noise_scale(noise_shape, card.features)
    net = SplitNet(encoder, nn.Identity(), cut, card.features, noise_scale=scale)
    fill_parameters(net, tensors)
    switch_to_evaluation(net)
    images = torch.rand(TRIAL_IMAGES, *card.shape, generator=torch.Generator().manual_seed(0))
    try:
        encode_images(net.encoder, images)
    except NetError as error:
        raise ServiceError(f"the encoder cannot be used: {error}") from error
    with torch.no_grad():
        z = net.encode(images[:1])
    if z.shape != (1, card.features):
        raise ServiceError(f"the encoder gives {tuple(z.shape)}, must be (1, {card.features})")
    return net


def read_metadata(data: bytes) -> dict[str, str]:
    """Return the strings in a safetensors file's header."""
    size = int.from_bytes(data[:8], "little")
    metadata: dict[str, str] = json.loads(data[8 : 8 + size])["__metadata__"]
    return metadata


def build_encoder(settings: NetSettings, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return an encoder of the project's own, without memory: its size is not checked yet."""
    if not isinstance(settings, OwnNet):
        raise ServiceError(
            f"the service's net is {settings.name!r}; pass your own as `encoder`: parts are never "
            "loaded from a message"
        )
    try:
        with torch.device("meta"):
            return settings.build(shape, classes)[0]
    except Exception as error:
        reason = describe_unforeseen(error)
        raise ServiceError(f"the service's net cannot be built: {reason}") from None


def fill_parameters(net: SplitNet, tensors: dict[str, Tensor]) -> None:
    """Put all parameters in; ServiceError when names, shapes or types differ."""
    expected = {name: tuple(value.shape) for name, value in net.device_parameters().items()}
    received = {name: tuple(value.shape) for name, value in tensors.items()}
    if expected != received or any(value.dtype != torch.float32 for value in tensors.values()):
        differing = sorted(name for name, _ in expected.items() ^ received.items())
        raise ServiceError(f"the encoder's tensors do not fit its net, first {differing[:1]}")
    net.load_device_parameters(tensors)
    net.requires_grad_(False)
