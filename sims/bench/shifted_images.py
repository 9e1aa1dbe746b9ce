"""Test images as a deployed model may meet them: turned, or noisy. Labels stay what they are."""

import math
from collections.abc import Callable, Mapping
from typing import Final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from fedcel.errors import SettingsError

TURN = 25.0
"""Degrees by which images are turned."""
PIXEL_NOISE = 0.2
"""Standard deviation of the noise on pixels, which lie in [0, 1]."""


def turn_images(
    x: Float[Tensor, "N C H W"], generator: torch.Generator
) -> Float[Tensor, "N C H W"]:
    """Turn each image about its centre by 25 degrees, to the left or to the right.

    Args:
        x: Images (N, C, H, W) in [0, 1].
        generator: Draws the directions.

    Returns:
        The turned images; what comes in from outside is black.
    """
    signs = torch.randint(2, (len(x),), generator=generator) * 2 - 1
    angles = signs * math.radians(TURN)
    cos, sin, zero = angles.cos(), angles.sin(), torch.zeros(len(x))
    theta = torch.stack([torch.stack([cos, -sin, zero], 1), torch.stack([sin, cos, zero], 1)], 1)
    grid = affine_grid(theta, list(x.shape), align_corners=False)
    return grid_sample(x, grid, align_corners=False)


def add_pixel_noise(
    x: Float[Tensor, "N C H W"], generator: torch.Generator
) -> Float[Tensor, "N C H W"]:
    """Add Gaussian noise of standard deviation 0.2 to each pixel, and cut off at 0 and 1.

    Args:
        x: Images (N, C, H, W) in [0, 1].
        generator: Draws the noise.

    Returns:
        The noisy images, in [0, 1].
    """
    return (x + PIXEL_NOISE * torch.randn(x.shape, generator=generator)).clamp(0, 1)


Shift = Callable[[Tensor, torch.Generator], Tensor]
SHIFTS: Final[Mapping[str, Shift]] = {"turned": turn_images, "noisy": add_pixel_noise}


def parse_shifts(names: str) -> dict[str, Shift]:
    """Read which shifts are asked for.

    Args:
        names: Their names with commas, or `none`.

    Returns:
        Each shift by its name.

    Raises:
        SettingsError: There is no such shift.
    """
    chosen = [] if names == "none" else [name.strip() for name in names.split(",")]
    for name in chosen:
        if name not in SHIFTS:
            raise SettingsError(
                f"--shifts names {name!r}, must be none or some of {', '.join(SHIFTS)}"
            )
    return {name: SHIFTS[name] for name in chosen}
