"""A source: digits held upright by some and turned by others, as rotated MNIST is used.

The holders see the same classes in other directions (feature shift), which no other partition of
fedcel makes. Upside down, a 6 is close to a 9: some digits cannot be told.
"""

import numpy as np
import torch
from sklearn.datasets import load_digits

from fedcel.data import Images, ImportedSource

TURNS = 4  # by 0, 90, 180 and 270 degrees, to the pixel


def read_rotated_digits(source: ImportedSource) -> tuple[Images, None, torch.Tensor]:
    """Return 1 797 images (N, 1, 8, 8) in [0, 1], no test part, and the holder of each image."""
    digits = load_digits()
    x = torch.from_numpy((digits.images[:, None] / 16).astype(np.float32))
    holders = torch.arange(len(x)) % TURNS
    turned = torch.stack(
        [torch.rot90(image, int(k), (1, 2)) for image, k in zip(x, holders, strict=True)]
    )
    return Images(turned, torch.from_numpy(digits.target.astype(np.int64))), None, holders
