"""What stays on the device: the measured encoder, its secret key, the record of what was sent."""

import hmac
import math
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from clients.device.keyed_noise import compute_fingerprint, disturb_features
from clients.device.message_groups import (
    Basis,
    EarlierMessage,
    GroupCharge,
    MessageGroups,
    NearDuplicatePolicy,
)
from clients.device.sent_messages import MARK_BYTES, SentMessages
from clients.encoder_leak_guard import Leak
from clients.service_messages import ModelCard
from fedcel.errors import DataError, NearDuplicateError
from fedcel.nets import SplitNet

NEAR_SIGMAS = 1.0
"""Two images so near are told apart by one message in at most 69 % of cases: Phi(1/2)."""


def describe_law(card: ModelCard, net: SplitNet) -> str:
    """Describe what decides a message besides the image.

    Args:
        card: The served model's card; only the encoder's digest is used, which was checked.
        net: The received net, with its cut.

    Returns:
        A text that differs where the encoder or the cut does.
    """
    return f"{card.encoder.sha256} {net.cut!r}"


class PreparedMessage(NamedTuple):
    """A message that is counted and may leave."""

    content: bytes
    """D values of float32, little-endian."""
    charge: GroupCharge
    """What was assumed of it."""
    group: bytes
    """Fingerprint of the group that it was charged to."""


class AssumedGroup(NamedTuple):
    """What a message is taken to show."""

    basis: Basis
    group: bytes
    earlier: EarlierMessage | None
    """A message of the group that this process sent."""
    distance: float | None


@final
@dataclass(frozen=True, kw_only=True)
class Device:
    """Makes messages of images with an encoder whose leak was measured.

    Args:
        net: The received encoder and cut.
        shape: Channels, height and width of an image.
        law: All that decides a message besides the image; see `describe_law`.
        max_value: Largest absolute value that a message may have.
        leak: What one message may tell.
        limit: Bits that all distinct messages together may tell.
        key: The device's secret key, 32 bytes.
        sent: The messages that left before.
        group_limit: Bits that all messages of nearly the same image together may tell.
        near_duplicates: What is done about an image that is nearly an earlier one.
        groups: The messages of this process.
    """

    net: SplitNet
    shape: tuple[int, ...]
    law: str
    max_value: float
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
        """Encode an image, add the noise of this device to it, and count the message.

        Args:
            image: The image, (C, H, W) in [0, 1].
            group: Name of the scene or person that it shows; None: the nearest earlier message of
                this process decides.

        Returns:
            D values of float32, little-endian; the same image gives the same bytes.

        Raises:
            DataError: Another shape, or values outside [0, 1].
            LeakLimitError: All messages together, or those of the group, would tell more than the
                limit.
            NearDuplicateError: The image is nearly an earlier one, and such are refused.
        """
        return self.prepare(image, group).content

    def prepare(
        self,
        image: Float[Tensor, "C H W"],
        group: str | None = None,
        *,
        encoded_before: PreparedMessage | None = None,
    ) -> PreparedMessage:
        """Build a message, and say what was assumed of it and charged.

        Args:
            image: As `build_message`.
            group: As `build_message`.
            encoded_before: The message of the same image that left before, by the encoder of an
                earlier model version: both are charged to one group.

        Returns:
            The message and its charge.

        Raises:
            DataError: As `build_message`.
            LeakLimitError: As `build_message`.
            NearDuplicateError: As `build_message`.
        """
        if tuple(image.shape) != self.shape or not ((image >= 0) & (image <= 1)).all():
            raise DataError(
                f"the image is {tuple(image.shape)}, must be {self.shape} with values in [0, 1]"
            )
        fingerprint = compute_fingerprint(self.key, self.law, image)
        with torch.no_grad():
            z = self.net.encode(image.to(torch.float32)[None])
            scale = self.net.scale_noise(z)
        noise_scale = None if scale is None else scale[0]
        smashed = disturb_features(self.net.cut, z[0], fingerprint, noise_scale)
        if not (smashed.abs() <= self.max_value).all():
            raise DataError(
                f"the message exceeds +-{self.max_value:g} or is undefined; use a bounded encoder"
            )
        content = smashed.numpy().astype("<f4").tobytes()
        features = self._in_units_of_noise(z[0], noise_scale)
        before = None if encoded_before is None else encoded_before.group
        assumed = self._assume_group(fingerprint, features, group, before)
        if assumed.basis in ("caller", "nearest") and assumed.earlier is not None:
            if self.near_duplicates == "refuse":
                raise NearDuplicateError(
                    f"the image is nearly an earlier one ({assumed.basis}); nothing was sent: use "
                    "its answer, or allow near-duplicates"
                )
            if self.near_duplicates == "reuse":
                charge = self._describe(assumed)
                return PreparedMessage(assumed.earlier.content, charge, assumed.group)
        self.sent.add(
            fingerprint,
            self.leak.upper,
            self.limit,
            group=assumed.group,
            group_limit=self.group_limit,
        )
        if assumed.basis != "repeat" and features is not None:
            self.groups.remember(EarlierMessage(features, assumed.group, content))
        return PreparedMessage(content, self._describe(assumed), assumed.group)

    def _in_units_of_noise(
        self, z: Float[Tensor, " D"], scale: Float[Tensor, " D"] | None
    ) -> Float[Tensor, " D"] | None:
        """Return features over the standard deviation of their noise; None without noise."""
        if not self.net.cut.sigma:
            return None
        return z / (self.net.cut.sigma * (torch.ones_like(z) if scale is None else scale))

    def _assume_group(
        self,
        fingerprint: bytes,
        features: Float[Tensor, " D"] | None,
        name: str | None,
        before: bytes | None,
    ) -> AssumedGroup:
        """Say which group a message belongs to, and on what grounds."""
        nearest = None if features is None else self.groups.find_nearest(features)
        distance = None if nearest is None else nearest[1]
        if (earlier_group := self.sent.find_group(fingerprint)) is not None:
            return AssumedGroup("repeat", earlier_group, None, distance)
        if name is not None:
            group = hmac.digest(self.key, b"group" + name.encode(), sha256)[:MARK_BYTES]
            return AssumedGroup("caller", group, self.groups.find_group(group), distance)
        if before is not None:
            return AssumedGroup("encoded-anew", before, None, distance)
        if nearest is not None and nearest[1] <= self.groups.radius:
            return AssumedGroup("nearest", nearest[0].group, nearest[0], distance)
        return AssumedGroup("alone", fingerprint[:MARK_BYTES], None, distance)

    def _describe(self, assumed: AssumedGroup) -> GroupCharge:
        """Return what a group has told by now."""
        total = self.sent.total_of(assumed.group)
        return GroupCharge(assumed.basis, total.messages, total.bits, assumed.distance)
