"""Device of an image owner: a measured encoder, a secret key, the record of what was sent."""

import hmac
import math
import secrets
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Protocol, final, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clients.device.keyed_noise import compute_fingerprint, disturb_features, load_device_key
from clients.device.sent_messages import SentMessages
from clients.encoder_leak_guard import Leak, LeakGuard
from clients.service_messages import ModelCard
from fedcel.errors import DataError
from fedcel.nets import SplitNet
from fedcel.short_repr import show_shapes


@final
@dataclass(frozen=True, kw_only=True)
class Device:
    """Makes messages of images with an encoder whose leak was measured.

    Args:
        card: The service's words on its model.
        net: The received encoder and cut.
        leak: Measured leak of one message.
        limit: Bits that all distinct messages together may tell.
        key: The device's secret key, 32 bytes.
        sent: The messages that left before.
        group_limit: Bits that all messages of one group together may tell; finite: each image needs
            a group.
    """

    card: ModelCard
    net: SplitNet
    leak: Leak
    limit: float
    key: bytes = field(repr=False)
    sent: SentMessages
    group_limit: float = math.inf

    @property
    def leaked_bits(self) -> float:
        """Return the bits that all messages so far may have told, at most."""
        return self.sent.total_bits

    def build_message(self, image: Float[Tensor, "C H W"], group: str | None = None) -> bytes:
        """Encode an image, add this device's noise, count the message and charge it to its group.

        Args:
            image: The image, (C, H, W) in [0, 1].
            group: Name of the scene or person that it shows; None: it is alone.

        Returns:
            D values of float32, little-endian; the same image gives the same ones.

        Raises:
            DataError: Another shape, values outside [0, 1], or no group where groups have a limit.
            LeakLimitError: All messages together, or those of the group, would tell more than the
                limit.
        """
        shape = tuple(self.card.shape)
        if tuple(image.shape) != shape or not ((image >= 0) & (image <= 1)).all():
            raise DataError(
                f"the image is {tuple(image.shape)}, must be {shape} with values in [0, 1]"
            )
        if group is None and self.group_limit < math.inf:
            raise DataError(
                f"messages of a group may tell {self.group_limit:g} bits together, and this image "
                "has no group; name the scene or person that it shows"
            )
        law = f"{self.card.encoder.sha256} {self.net.cut!r}"
        fingerprint = compute_fingerprint(self.key, law, image)
        with torch.no_grad():
            z = self.net.encode(image.to(torch.float32)[None])
            scale = self.net.scale_noise(z)
        noise_scale = None if scale is None else scale[0]
        smashed = disturb_features(self.net.cut, z[0], fingerprint, noise_scale)
        if not (smashed.abs() <= self.card.largest).all():
            raise DataError(
                f"the message exceeds +-{self.card.largest:g} or is undefined; use a bounded "
                "encoder"
            )
        name = None
        if group is not None:
            name = hmac.digest(self.key, b"group" + group.encode(), sha256)
        self.sent.add(
            fingerprint, self.leak.upper, self.limit, group=name, group_limit=self.group_limit
        )
        return smashed.numpy().astype("<f4").tobytes()


@runtime_checkable
class DeviceBuilder(Protocol):
    """Maker of a device out of what a service sent."""

    @property
    def encoder(self) -> nn.Module | None:
        """Return a module of the caller's own, into which the received values go; or None."""
        ...

    def build_device(self, card: ModelCard, net: SplitNet) -> Device:
        """Make a device of a model's card and its net; LeakError where that leaks too much."""
        ...


@show_shapes
@final
@dataclass(frozen=True)
class ImageOwner:
    """Owner of a device: images for measurements, limits, and the folder of its secret key.

    Args:
        images: Images for measurements, (M, C, H, W) in [0, 1], 20 or more.
        labels: Their classes, (M,).
        message_limit: Bits beyond the label that one message may tell.
        total_limit: Bits that all distinct messages together may tell.
        state: Folder for the device's key and the digests of sent messages. Without it both are
            lost when the process ends, and the same image then gives another message.
        encoder: Module for the received weights, if the service's net is not a built-in one.
        group_limit: Bits that all messages of one group together may tell, such as frames of one
            scene; None: no limit of their own, and an image needs no group.
    """

    images: Float[Tensor, "M C H W"]
    labels: Int[Tensor, " M"]
    message_limit: float = 1.0
    total_limit: float = 1000.0
    state: str | Path | None = None
    encoder: nn.Module | None = None
    group_limit: float | None = None

    def build_device(self, card: ModelCard, net: SplitNet) -> Device:
        """Measure a received encoder, and make a device with it; as `DeviceBuilder` states."""
        state = None if self.state is None else Path(self.state)
        generator = torch.Generator().manual_seed(secrets.randbits(63))
        leak = LeakGuard(self.message_limit).check(net, self.images, self.labels, generator)
        return Device(
            card=card,
            net=net,
            leak=leak,
            limit=self.total_limit,
            key=load_device_key(state and state / "device.key"),
            sent=SentMessages(state and state / "sent.txt"),
            group_limit=math.inf if self.group_limit is None else self.group_limit,
        )
