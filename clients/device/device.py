"""Device of an image owner: a measured encoder, a secret key, the record of what was sent."""

import hmac
import math
import secrets
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clients.device.keyed_noise import compute_fingerprint, disturb_features, load_device_key
from clients.device.message_groups import (
    Basis,
    EarlierMessage,
    GroupCharge,
    MessageGroups,
    NearDuplicatePolicy,
)
from clients.device.sent_messages import MARK_BYTES, SentMessages
from clients.encoder_leak_guard import Leak, LeakGuard
from clients.service_messages import ModelCard
from fedcel.errors import DataError, NearDuplicateError
from fedcel.nets import SplitNet
from fedcel.short_repr import show_shapes

NEAR_SIGMAS = 1.0
"""Two images so near are told apart by one message in at most 69 % of cases: Phi(1/2)."""


class PreparedMessage(NamedTuple):
    """A message that is counted and may leave."""

    content: bytes
    """D values of float32, little-endian."""
    charge: GroupCharge
    """Group that it is charged to, and why."""
    group: bytes
    """Fingerprint of the group that it was charged to."""


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
        group_limit: Bits that all messages of nearly the same image together may tell.
        near_duplicates: What is done about an image that is nearly an earlier one.
        groups: The messages of this process.
    """

    card: ModelCard
    net: SplitNet
    leak: Leak
    limit: float
    key: bytes = field(repr=False)
    sent: SentMessages
    group_limit: float = math.inf
    near_duplicates: NearDuplicatePolicy = "count"
    groups: MessageGroups = field(default_factory=lambda: MessageGroups(NEAR_SIGMAS))

    @property
    def leaked_bits(self) -> float:
        """Return the bits that all messages so far may have told, at most."""
        return self.sent.total_bits

    def build_message(self, image: Float[Tensor, "C H W"], group: str | None = None) -> bytes:
        """Return the bytes of `prepare`: the same image gives the same ones."""
        return self.prepare(image, group).content

    def prepare(
        self,
        image: Float[Tensor, "C H W"],
        group: str | None = None,
        *,
        encoded_before: PreparedMessage | None = None,
    ) -> PreparedMessage:
        """Encode an image, add this device's noise, count the message and charge it to its group.

        Args:
            image: The image, (C, H, W) in [0, 1].
            group: Name of the scene or person that it shows; None: the nearest earlier message of
                this process decides.
            encoded_before: The message of the same image that left before, by the encoder of an
                earlier model version: both are charged to one group.

        Raises:
            DataError: Another shape, or values outside [0, 1].
            LeakLimitError: All messages together, or those of the group, would tell more than the
                limit.
            NearDuplicateError: The image is nearly an earlier one, and such are refused.
        """
        shape = tuple(self.card.shape)
        if tuple(image.shape) != shape or not ((image >= 0) & (image <= 1)).all():
            raise DataError(
                f"the image is {tuple(image.shape)}, must be {shape} with values in [0, 1]"
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
        content = smashed.numpy().astype("<f4").tobytes()
        features = None  # in units of the noise
        if sigma := self.net.cut.sigma:
            features = z[0] / (sigma if noise_scale is None else sigma * noise_scale)
        nearest = None if features is None else self.groups.find_nearest(features)
        before = None if encoded_before is None else encoded_before.group
        basis, mark, earlier = self._assume_group(fingerprint, nearest, group, before)
        if earlier is not None and self.near_duplicates == "refuse":
            raise NearDuplicateError(
                f"the image is nearly an earlier one ({basis}); nothing was sent: use its answer, "
                "or allow near-duplicates"
            )
        if earlier is not None and self.near_duplicates == "reuse":
            content = earlier.content
        else:
            self.sent.add(
                fingerprint, self.leak.upper, self.limit, group=mark, group_limit=self.group_limit
            )
            if basis != "repeat" and features is not None:
                self.groups.remember(EarlierMessage(features, mark, content))
        total = self.sent.total_of(mark)
        distance = None if nearest is None else nearest[1]
        charge = GroupCharge(basis, total.messages, total.bits, distance)
        return PreparedMessage(content, charge, mark)

    def _assume_group(
        self,
        fingerprint: bytes,
        nearest: tuple[EarlierMessage, float] | None,
        name: str | None,
        before: bytes | None,
    ) -> tuple[Basis, bytes, EarlierMessage | None]:
        """Return the group of a message, and an earlier one of it that shows nearly the same."""
        if (earlier_group := self.sent.find_group(fingerprint)) is not None:
            return "repeat", earlier_group, None
        if name is not None:
            group = hmac.digest(self.key, b"group" + name.encode(), sha256)[:MARK_BYTES]
            return "caller", group, self.groups.find_group(group)
        if before is not None:
            return "encoded-anew", before, None
        if nearest is not None and nearest[1] <= self.groups.radius:
            return "nearest", nearest[0].group, nearest[0]
        return "alone", fingerprint[:MARK_BYTES], None


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
    """Owner of a device: images to measure with, limits, where to keep the secret.

    Args:
        images: Images to measure with, (M, C, H, W) in [0, 1], 20 or more.
        labels: Their classes, (M,).
        message_limit: Bits beyond the label that one message may tell.
        total_limit: Bits that all distinct messages together may tell.
        state: Folder for the device's key and the marks of what was sent. Without it both last as
            long as the process, and the same image is another message after a restart.
        encoder: Module for the received values, where the service's net is not the project's own.
        group_limit: Bits that all messages of nearly the same image together may tell, such as
            frames of one scene; None: no limit of their own.
        near_duplicates: What is done about an image that is nearly an earlier one: `count` sends it
            and charges its group, `refuse` sends nothing, `reuse` asks with the earlier message,
            whose answer is free.
        near_sigmas: Images are nearly the same where their features are at most so many standard
            deviations of the noise apart; 0: only where the caller names a group.
    """

    images: Float[Tensor, "M C H W"]
    labels: Int[Tensor, " M"]
    message_limit: float = 1.0
    total_limit: float = 1000.0
    state: str | Path | None = None
    encoder: nn.Module | None = None
    group_limit: float | None = None
    near_duplicates: NearDuplicatePolicy = "count"
    near_sigmas: float = NEAR_SIGMAS

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
            near_duplicates=self.near_duplicates,
            groups=MessageGroups(self.near_sigmas),
        )
