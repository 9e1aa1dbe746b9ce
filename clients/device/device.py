"""What stays on the device: the measured encoder, its secret key, the record of what was sent."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from clients.device.keyed_noise import compute_fingerprint, disturb_features
from clients.device.sent_messages import SentMessages
from clients.encoder_leak_guard import Leak
from clients.service_messages import ModelCard
from fedcel.errors import DataError
from fedcel.nets import SplitNet


def describe_law(card: ModelCard, net: SplitNet) -> str:
    """Describe what decides a message besides the image.

    Args:
        card: The served model's card; only the encoder's digest is used, which was checked.
        net: The received net, with its cut.

    Returns:
        A text that differs where the encoder or the cut does.
    """
    return f"{card.encoder.sha256} {net.cut!r}"


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
    """

    net: SplitNet
    shape: tuple[int, ...]
    law: str
    max_value: float
    leak: Leak
    limit: float
    key: bytes
    sent: SentMessages

    @property
    def leaked_bits(self) -> float:
        """Return the bits that all messages so far may have told, at most."""
        return self.sent.total_bits

    def build_message(self, image: Float[Tensor, "C H W"]) -> bytes:
        """Encode an image, add the noise of this device to it, and count the message.

        Args:
            image: The image, (C, H, W) in [0, 1].

        Returns:
            D values of float32, little-endian; the same image gives the same bytes.

        Raises:
            DataError: Another shape, or values outside [0, 1].
            LeakLimitError: All messages together would tell more than the limit.
        """
        if tuple(image.shape) != self.shape or not ((image >= 0) & (image <= 1)).all():
            raise DataError(
                f"the image is {tuple(image.shape)}, must be {self.shape} with values in [0, 1]"
            )
        fingerprint = compute_fingerprint(self.key, self.law, image)
        with torch.no_grad():
            z = self.net.encode(image.to(torch.float32)[None])
            scale = self.net.scale_noise(z)
        smashed = disturb_features(
            self.net.cut, z[0], fingerprint, None if scale is None else scale[0]
        )
        if not (smashed.abs() <= self.max_value).all():
            raise DataError(
                f"the message exceeds +-{self.max_value:g} or is undefined; use a bounded encoder"
            )
        self.sent.add(fingerprint, self.leak.upper, self.limit)
        return smashed.numpy().astype("<f4").tobytes()
