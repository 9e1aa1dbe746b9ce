"""Random changes of images: what they do to a picture that is known."""

from math import tan

import pytest
import torch
from torch import Tensor

from fedcel.data.augmentation import MAX_SCALE, MAX_SHIFT, MAX_TURN, augment_images
from fedcel.errors import SettingsError
from fedcel.settings import parse_settings
from tests.fedcel.seeded import seeded as stream

KINDS = ["affine", "affine,flip", "crop,flip,cutout", "affine,cutout"]


def spot(count: int, side: int = 33) -> Tensor:
    """Return images with a bright disc right of the middle."""
    line = torch.linspace(-1, 1, side)
    away = (line[None] - 0.5).square() + line[:, None].square()
    return (-away / 0.02).exp().expand(count, 1, side, side)


def centre_of_mass(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return where the light is, right and down, in half sides."""
    line, light = torch.linspace(-1, 1, x.shape[-1]), x.sum((1, 2, 3))
    return (x.sum((1, 2)) @ line) / light, (x.sum((1, 3)) @ line) / light


@pytest.mark.parametrize("kind", KINDS)
def test_same_bits_from_the_same_generator(kind: str) -> None:
    """Another seed, other images; the given ones are not changed."""
    x = torch.rand(5, 3, 16, 9, generator=stream(1))
    before = x.clone()
    changed = augment_images(x, kind, stream(2))
    assert changed.shape == x.shape
    assert torch.equal(changed, augment_images(x, kind, stream(2)))
    assert not torch.equal(changed, augment_images(x, kind, stream(3)))
    assert torch.equal(x, before)


@pytest.mark.parametrize("kind", KINDS)
def test_images_stay_images(kind: str) -> None:
    """Values in [0, 1]: means of neighbours, black beyond the border."""
    changed = augment_images(torch.ones(50, 1, 9, 9), kind, stream(4))
    assert 0 <= changed.min() < 0.5
    assert changed.max() <= 1 + 1e-6


def test_no_change_at_all_is_the_image() -> None:
    """A generator that only draws the middle gives the image itself: the grid is aligned."""

    def middle(*shape: int, generator: torch.Generator) -> Tensor:
        return torch.full(shape, 0.5)

    x = torch.rand(4, 2, 8, 6, generator=stream(5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "rand", middle)
        torch.testing.assert_close(augment_images(x, "affine", stream()), x, atol=1e-6, rtol=0)


def test_every_image_moves_on_its_own_within_bounds() -> None:
    """A disc at 0.5: shifted by 0.12 half sides, turned by 9 degrees, scaled by a tenth, at most.

    Each bound is reached, within a fifth.
    """
    right, down = centre_of_mass(augment_images(spot(500), "affine", stream(6)))
    far = 0.5 * (1 + MAX_SCALE) + 2 * MAX_SHIFT * (1 + MAX_SCALE)
    assert len(set(right.tolist())) > 490
    assert 0.9 * far < right.max() < far + 0.01
    low = 0.5 * (1 - MAX_SCALE) - 2 * MAX_SHIFT * (1 + MAX_SCALE) - 0.5 * MAX_TURN**2
    assert low - 0.01 < right.min() < low + 0.1 * far
    sideways = 0.5 * (1 + MAX_SCALE) * MAX_TURN + 2 * MAX_SHIFT * (1 + MAX_SCALE)
    assert 0.75 * sideways < down.abs().max() < sideways + 0.01


@pytest.mark.parametrize("width", [32, 128])
def test_lines_lean_by_the_turn_however_wide_an_image_is(width: int) -> None:
    """A vertical and a horizontal one, by 9 degrees, the largest turn."""

    def turn_most(*shape: int, generator: torch.Generator) -> Tensor:
        drawn = torch.full(shape, 0.5)
        drawn[0] = 1.0
        return drawn

    x = torch.zeros(2, 1, 32, width)
    x[0, :, :, width // 2 - 1 : width // 2 + 1] = 1
    x[1, :, 15:17] = 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "rand", turn_most)
        upright, level = augment_images(x, "affine", stream())[:, 0]
    columns = (upright * torch.arange(width)).sum(1) / upright.sum(1)
    rows = (level * torch.arange(32)[:, None]).sum(0) / level.sum(0)
    middle = width // 2
    slopes = [columns[20] - columns[11], rows[middle - 5] - rows[middle + 4]]
    assert [float(slope) / 9 for slope in slopes] == pytest.approx([tan(MAX_TURN)] * 2, rel=0.05)


def test_sizes_differ_by_up_to_a_tenth() -> None:
    """A disc's light is its area: from .81 to 1.21 of what it was, both reached."""
    light = augment_images(spot(500), "affine", stream(8)).sum((1, 2, 3)) / spot(1).sum()
    assert (1 - MAX_SCALE) ** 2 - 0.02 < light.min() < 0.84
    assert 1.18 < light.max() < (1 + MAX_SCALE) ** 2 + 0.02


def test_half_are_mirrored() -> None:
    """Only of the kind that says so: a disc on the right is then on the left."""
    right, _ = centre_of_mass(augment_images(spot(400), "affine,flip", stream(7)))
    assert 0.4 < (right < 0).double().mean() < 0.6
    right, _ = centre_of_mass(augment_images(spot(400), "affine", stream(7)))
    assert (right > 0).all()


def test_a_crop_is_a_window_of_the_padded_image() -> None:
    """Of 32 pixels with 4 black ones around: each of the 81 windows comes up, and no other."""
    x = torch.rand(1, 2, 32, 32, generator=stream(9)).expand(900, -1, -1, -1)
    padded = torch.nn.functional.pad(x[0], (4, 4, 4, 4))
    windows = padded.unfold(1, 32, 1).unfold(2, 32, 1).permute(1, 2, 0, 3, 4).flatten(0, 1)
    cropped = augment_images(x, "crop", stream(10))
    is_equal = (cropped[:, None, 0, 4:28:8, 4:28:8] == windows[None, :, 0, 4:28:8, 4:28:8]).flatten(
        2
    )
    window = is_equal.all(2).int().argmax(1)
    assert torch.equal(cropped, windows[window])
    assert len(window.unique()) == 81


def test_a_flip_mirrors_half_of_the_images() -> None:
    """Every image is itself or its mirror image, to the bit, also before a crop."""
    x = torch.rand(400, 3, 8, 10, generator=stream(11))
    flipped = augment_images(x, "flip", stream(12))
    is_mirrored = (flipped == x.flip(3)).flatten(1).all(1)
    assert torch.equal(flipped[~is_mirrored], x[~is_mirrored])
    assert 160 < is_mirrored.sum() < 240
    both = augment_images(x, "crop,flip", stream(12))  # the mirrors are drawn first
    inner = x.where(~is_mirrored[:, None, None, None], x.flip(3))[:, :, 1:-1, 1:-1]
    windows = torch.stack([both[:, :, i : i + 6, j : j + 8] for i in range(3) for j in range(3)])
    assert (windows == inner).flatten(2).all(2).any(0).all()


def test_a_cutout_hides_a_square_around_a_random_pixel() -> None:
    """Of half the side, cut off at the borders, all else as it was; every pixel can be hidden."""
    x = 0.5 + torch.rand(500, 2, 8, 12, generator=stream(13)) / 2
    cut = augment_images(x, "cutout", stream(14))
    is_hidden = cut == 0
    assert torch.equal(cut[~is_hidden], x[~is_hidden])
    assert torch.equal(is_hidden[:, 0], is_hidden[:, 1])
    heights, widths = is_hidden[:, 0].any(2).sum(1), is_hidden[:, 0].any(1).sum(1)
    assert torch.equal(is_hidden[:, 0].sum((1, 2)), heights * widths)  # a rectangle
    assert (heights.max(), widths.max()) == (4, 4) and (heights.min(), widths.min()) == (2, 2)
    assert is_hidden[:, 0].any(0).all() and not is_hidden[:, 0].all(0).any()


@pytest.mark.parametrize(
    "names", ["", "turn", "crop,crop", "crop, flip", "none,crop", "affine-flip", "Crop"]
)
def test_other_names_are_refused(names: str) -> None:
    """With those that there are."""
    with pytest.raises(SettingsError, match=f"local.augment is '{names}', must be none, or some"):
        parse_settings({"local.augment": names})
    assert parse_settings({"local.augment": "crop,flip"}).local.augment == "crop,flip"
