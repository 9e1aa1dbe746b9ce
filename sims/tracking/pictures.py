"""Pictures for trackers: rows of images, as red, green and blue."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from torch import Tensor

from sims.report.reconstruction_strips import Strip, make_grid
from sims.tracking.tracker import Picture

BACKGROUND = 255


def draw_rows(rows: Sequence[Float[Tensor, "N C H W"]]) -> Picture:
    """Return rows of images below one another, small images enlarged, on white.

    Args:
        rows: Of as many images each, in [0, 1].
    """
    grid = make_grid([Strip("", "", row.clamp(0, 1).numpy()) for row in rows])
    opacity = grid[..., 3:].astype(np.float64) / 255
    blended = grid[..., :3] * opacity + BACKGROUND * (1 - opacity)
    return np.ascontiguousarray(blended.round().astype(np.uint8))
