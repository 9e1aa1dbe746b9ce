"""Random changes of training images that keep their labels."""

from math import pi

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, pad

MAX_TURN = pi / 20  # radians
MAX_SCALE = 0.1
MAX_SHIFT = 0.06  # of the side
CROP_MARGIN = 8  # sides of an image in the margin of a crop: 4 of 32 pixels
CUTOUT_SIDE = 2  # sides of a cutout in an image's

AUGMENTATIONS = ("affine", "crop", "flip", "cutout")
"""Names that `augment_images` takes."""


def check_augmentations(names: str) -> str:
    """Refuse what is neither none nor names of augmentations, each once.

    Args:
        names: Names, separated by commas.

    Returns:
        The names.

    Raises:
        ValueError: There is another name, or there are two of a kind.
    """
    kinds = names.split(",")
    is_listed = all(name in AUGMENTATIONS for name in kinds)
    if names == "none" or (is_listed and len(set(kinds)) == len(kinds)):
        return names
    raise ValueError(
        f"must be none, or some of {', '.join(AUGMENTATIONS)}, each once, with commas and no "
        "spaces between them"
    )


def augment_images(
    x: Float[Tensor, "B C H W"], names: str, generator: torch.Generator
) -> Float[Tensor, "B C H W"]:
    """Change images at random, each on its own.

    `affine` turns them by up to 9 degrees, scales them by up to 10 % and shifts them by up to 6 %.
    `crop` shifts them by whole pixels, up to an eighth of a side (He et al., CVPR 2016, section
    4.2), `flip` mirrors each with a chance of one half, and `cutout` hides a square of half the
    shorter side around a random pixel (DeVries and Taylor, 2017). What is hidden or beyond the
    border is black.

    Args:
        x: Images (B, C, H, W).
        names: Some of `AUGMENTATIONS`, separated by commas; their order does not matter.
        generator: The only source of random numbers.

    Returns:
        Images of the same shape.
    """
    chosen = set(names.split(","))
    if "affine" in chosen:  # which mirrors in the same pass
        x = _turn_images(x, generator, is_mirrored="flip" in chosen)
        chosen -= {"flip"}
    if chosen & {"crop", "flip"}:
        x = _move_images(x, generator, is_cropped="crop" in chosen, is_mirrored="flip" in chosen)
    return _hide_squares(x, generator) if "cutout" in chosen else x


def _turn_images(
    x: Float[Tensor, "B C H W"], generator: torch.Generator, *, is_mirrored: bool
) -> Float[Tensor, "B C H W"]:
    """Turn, scale and shift images, and mirror each with a chance of one half."""
    turn, scale, right, down, mirror = 2 * torch.rand(5, len(x), generator=generator) - 1
    angle, size = turn * MAX_TURN, 1 + scale * MAX_SCALE
    cos, sin = angle.cos() / size, angle.sin() / size
    side = mirror.sign() if is_mirrored else torch.ones_like(mirror)
    wide = x.shape[3] / x.shape[2]  # the grid counts halves of each side
    rows = [
        *(cos * side, -sin / wide, right * 2 * MAX_SHIFT),
        *(sin * wide * side, cos, down * 2 * MAX_SHIFT),
    ]
    theta = torch.stack(rows, 1).view(-1, 2, 3)
    grid = affine_grid(theta.to(x.device), list(x.shape), align_corners=False)
    return grid_sample(x, grid, align_corners=False)


def _move_images(
    x: Float[Tensor, "B C H W"],
    generator: torch.Generator,
    *,
    is_cropped: bool,
    is_mirrored: bool,
) -> Float[Tensor, "B C H W"]:
    """Shift images by whole pixels and mirror half of them, in one pass over the pixels."""
    count, channels, height, width = x.shape
    rows, columns = torch.arange(height), torch.arange(width).expand(count, -1)
    if is_mirrored:
        is_turned = torch.rand(count, 1, generator=generator) < 0.5
        columns = torch.where(is_turned, columns.flip(1), columns)
    down, right = height // CROP_MARGIN, width // CROP_MARGIN
    if is_cropped:
        x = pad(x, (right, right, down, down))
        rows = rows + torch.randint(2 * down + 1, (count, 1), generator=generator)
        columns = columns + torch.randint(2 * right + 1, (count, 1), generator=generator)
    pixels = (rows[..., None] * x.shape[3] + columns[:, None]).view(count, 1, -1).to(x.device)
    return x.flatten(2).gather(2, pixels.expand(-1, channels, -1)).view(-1, channels, height, width)


def _hide_squares(
    x: Float[Tensor, "B C H W"], generator: torch.Generator
) -> Float[Tensor, "B C H W"]:
    """Blacken a square of half the shorter side around a random pixel, as far as it is inside."""
    side = min(x.shape[2:]) // CUTOUT_SIDE
    is_hidden = []
    for length in x.shape[2:]:
        first = torch.randint(length, (len(x), 1), generator=generator) - side // 2
        place = torch.arange(length) - first
        is_hidden.append((place >= 0) & (place < side))
    rows, columns = is_hidden
    hidden = (rows[:, None, :, None] & columns[:, None, None, :]).to(x.device)
    return x.masked_fill(hidden, 0.0)
