"""A net whose device removes the high frequencies of an image before it encodes it."""

from functools import partial

import torch
from scipy.fft import dct
from torch import Tensor, nn

from fedcel.nets import ImportedNet, Mlp


class LowPass(nn.Module):
    """Keeps the lowest cosine frequencies of each side, as InfoDecom (AAAI 2026) does first.

    An image's values may leave [0, 1] a little. What is removed, no attacker sees; what that is
    worth beside noise is measured, not argued.
    """

    def __init__(self, shape: tuple[int, ...], share: float) -> None:
        super().__init__()
        for name, size in zip(("rows", "columns"), shape[1:], strict=True):
            waves = torch.from_numpy(dct(torch.eye(size).numpy(), axis=0, norm="ortho"))
            lowest = waves[: max(1, round(share * size))]
            self.register_buffer(name, lowest.T @ lowest)

    def forward(self, x: Tensor) -> Tensor:
        """Return images (B, C, H, W) without their high frequencies."""
        return self.rows @ x @ self.columns


def build_low_pass(
    shape: tuple[int, ...], classes: int, net: ImportedNet, *, share: float
) -> tuple[nn.Module, nn.Module]:
    """Return (encoder, head) of `mlp`, the filter before the encoder's first layer."""
    encoder, head = Mlp(features=net.features, width=net.width).build(shape, classes)
    return nn.Sequential(LowPass(shape, share), encoder), head


low_pass_75 = partial(build_low_pass, share=0.75)
low_pass_62 = partial(build_low_pass, share=0.625)
low_pass_50 = partial(build_low_pass, share=0.5)
