"""The first pictures are shown before the others are read."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedcel.data import check_first_images, decode_pictures
from fedcel.errors import NetError


def test_a_check_sees_two_pictures_and_ends_the_reading(tmp_path: Path) -> None:
    """What it raises comes through; outside nothing is checked."""
    for number in range(2):
        pixels = np.full((4, 4, 3), 255 * number, dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    (tmp_path / "2.png").write_bytes(b"no picture")
    files = [(path.name, path) for path in sorted(tmp_path.iterdir())]
    seen: list[torch.Tensor] = []

    def check(images: torch.Tensor) -> None:
        seen.append(images)
        raise NetError("of another size")

    with pytest.raises(NetError, match="of another size"), check_first_images(check):
        decode_pictures(iter(files), 3)
    assert seen[0].shape == (2, 3, 4, 4) and seen[0].mean((1, 2, 3)).tolist() == [0, 1]
    decode_pictures(iter(files[:2]), 2)
    assert len(seen) == 1
