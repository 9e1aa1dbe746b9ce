"""Random changes of training images that keep their labels."""

from math import pi

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

MAX_TURN = pi / 20  # radians
MAX_SCALE = 0.1
MAX_SHIFT = 0.06  # of the side


def augment_images(
    x: Float[Tensor, "B C H W"], kind: str, generator: torch.Generator
) -> Float[Tensor, "B C H W"]:
    """Turn images by up to 9 degrees, scale them by up to 10 %, shift them by up to 6 %.

    Each uniformly at random for each image, black beyond the border.

    Args:
        x: Images (B, C, H, W).
        kind: `affine`, or `affine-flip`, which mirrors every other image as well.
        generator: The only source of random numbers.

    Returns:
        Images of the same shape.
    """
    turn, scale, right, down, mirror = 2 * torch.rand(5, len(x), generator=generator) - 1
    angle, size = turn * MAX_TURN, 1 + scale * MAX_SCALE
    cos, sin = angle.cos() / size, angle.sin() / size
    side = mirror.sign() if kind == "affine-flip" else torch.ones_like(mirror)
    rows = [cos * side, -sin, right * 2 * MAX_SHIFT, sin * side, cos, down * 2 * MAX_SHIFT]
    theta = torch.stack(rows, 1).view(-1, 2, 3)
    grid = affine_grid(theta.to(x.device), list(x.shape), align_corners=False)
    return grid_sample(x, grid, align_corners=False)
