"""Guard of a data holder: measures the leak of an encoder before anything leaves.

The sender of an encoder may have made it leak (Pasquini et al., CCS 2021), or forgotten the
noise: the optimal attacker on own images tells, whatever the sender says of it.
"""

from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.errors import LeakError
from fedcel.leakage import SmashedData, optimal_leak
from fedcel.nets import SplitNet

MIN_IMAGES = 20  # with fewer a measurement says nothing


class Leak(NamedTuple):
    """Bits beyond the label of one message, measured on the device's own images."""

    bits: float
    half_width: float
    """Half of the width of the 95 % interval over the images, in bits."""
    cap: float
    """The most that could be measured: the mean over images of log2(images of the same class)."""
    images: int

    @property
    def upper(self) -> float:
        """Return the upper confidence limit, in bits; a message takes nothing back."""
        return max(0.0, self.bits + self.half_width)


def measure_leak(
    net: SplitNet,
    images: Float[Tensor, "M C H W"],
    labels: Int[Tensor, " M"],
    generator: torch.Generator,
) -> Leak:
    """Measure the leak of one message of `net`, exact for these images and fresh noise.

    Args:
        net: Encoder and cut; the head is not used.
        images: Own images, (M, C, H, W) in [0, 1]. More images raise the cap, and so the bits of an
            undefended encoder.
        labels: Their classes, (M,).
        generator: Draws the noise.

    Raises:
        LeakError: Fewer than 20 images.
        NetError: The encoder gives undefined values.
    """
    if len(images) < MIN_IMAGES or len(images) != len(labels):
        raise LeakError(
            f"{len(images)} images and {len(labels)} labels to measure the encoder with, must be "
            f"at least {MIN_IMAGES} of each; give more own images"
        )
    leak = optimal_leak(SmashedData(net), images, labels, generator)
    return Leak(
        bits=leak.bits_beyond_label,
        half_width=leak.beyond_label_half_width,
        cap=leak.cap_beyond_label,
        images=len(images),
    )


@final
@dataclass(frozen=True)
class LeakGuard:
    """Refuses an encoder that may leak more than `limit` bits beyond the label in one message.

    LeakError where the limit is no number of bits.
    """

    limit: float

    def __post_init__(self) -> None:
        """Refuse a limit that is no number of bits; LeakError."""
        if not 0 < self.limit < float("inf"):
            raise LeakError(f"the limit is {self.limit} bits, must be finite and above 0; try 1")

    def check(
        self,
        net: SplitNet,
        images: Float[Tensor, "M C H W"],
        labels: Int[Tensor, " M"],
        generator: torch.Generator,
    ) -> Leak:
        """Return the leak of an encoder, at most the limit; arguments as of `measure_leak`.

        Raises:
            LeakError: The leak may exceed the limit, or the images are too few to know.
        """
        leak = measure_leak(net, images, labels, generator)
        if leak.upper > self.limit:
            raise LeakError(
                f"one message of this encoder leaks up to {leak.upper:.2f} bits beyond the label, "
                f"the limit is {self.limit:g}; ask for a defended model, or raise the limit"
            )
        if leak.cap <= self.limit:
            raise LeakError(
                f"{leak.images} images show at most {leak.cap:.2f} bits, the limit is "
                f"{self.limit:g}: they could not tell; give more own images, or lower the limit"
            )
        return leak
