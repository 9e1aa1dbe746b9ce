"""Descend on the pixels of many images at once, each row for itself."""

from collections.abc import Callable
from math import cos, pi
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks.attacker import Attacker
from fedcel.torch_state import use_full_precision

PixelLoss = Callable[[Float[Tensor, "N C H W"]], Float[Tensor, " N"]]
"""One number per image."""


class DescentSteps(NamedTuple):
    """How long and fast to descend: Adam's steps, their size falling to 0 as a cosine."""

    number: int
    rate: float

    def scaled(self, factor: float) -> "DescentSteps":
        """Return as many times the steps, at least one."""
        return self._replace(number=max(1, round(self.number * factor)))


@use_full_precision()
def descend_pixels(
    loss: PixelLoss,
    start: Float[Tensor, "N C H W"],
    steps: DescentSteps,
    attacker: Attacker | None = None,
) -> Float[Tensor, "N C H W"]:
    """Return images in [0, 1] near a minimum of each row's loss, clipped after each step.

    The attacker, where there is one, reports the steps.

    Rows do not mix: Adam's step with the largest of its second moments (Reddi et al., ICLR 2018,
    algorithm 2) is pixel by pixel, and the losses are summed.
    """
    images = start.detach().clone().requires_grad_()
    adam = torch.optim.Adam([images], steps.rate, amsgrad=True)
    for step in range(1, steps.number + 1):
        for group in adam.param_groups:
            group["lr"] = steps.rate * (1 + cos(pi * (step - 1) / steps.number)) / 2
        losses = loss(images)
        (images.grad,) = torch.autograd.grad(losses.sum(), images)
        adam.step()
        with torch.no_grad():
            images.clamp_(0, 1)
        if attacker and attacker.progress:  # to read a loss is to wait for the device
            mean_loss = float(losses.detach().mean())
            attacker.report("step", step, steps.number, f"loss {mean_loss:.4g}")
    return images.detach()


def total_variation(images: Float[Tensor, "N C H W"]) -> Float[Tensor, " N"]:
    """Return the mean absolute difference of neighbours, down plus across; Rudin et al., 1992.

    0 along a side of one pixel.
    """
    down = (images[:, :, 1:] - images[:, :, :-1]).abs().flatten(1)
    across = (images[:, :, :, 1:] - images[:, :, :, :-1]).abs().flatten(1)
    return down.sum(1) / max(1, down.shape[1]) + across.sum(1) / max(1, across.shape[1])
