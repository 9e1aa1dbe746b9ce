"""Pictures for trackers: rows of images, and what an attacker makes of messages in a training."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks import Attacker, KernelRidge
from fedcel.data import Images, load_splits
from fedcel.errors import RunError
from fedcel.files import read_tensors
from fedcel.leakage import SmashedData
from fedcel.run_parts import init_net
from fedcel.seeding import make_generator
from fedcel.settings import Settings
from sims.report.reconstruction_strips import Strip, make_grid
from sims.tracking.tracker import Picture

BACKGROUND = 255
SHOWN_IMAGES = 8
OWN_IMAGES = 200
"""Of the attacker, at most, with one message each: the effort grows as the cube of both.

It never sees an image that is shown.
"""


def draw_rows(rows: Sequence[Float[Tensor, "N C H W"]]) -> Picture:
    """Return rows of images in [0, 1] below one another, small images enlarged, on white."""
    grid = make_grid([Strip("", "", row.clamp(0, 1).numpy()) for row in rows])
    opacity = grid[..., 3:].astype(np.float64) / 255
    blended = grid[..., :3] * opacity + BACKGROUND * (1 - opacity)
    return np.ascontiguousarray(blended.round().astype(np.uint8))


class RoundPictures:
    """Draws the first validation images, and what kernel ridge rebuilds from one message of each.

    The model is read from the run's folder, so that the training knows nothing of it.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        """Load the run's images; FedcelError where images or net cannot be built."""
        splits = load_splits(settings.data, settings.clients, settings.seed)
        self._flat = init_net(settings, splits)
        self._path = folder / "state" / "server.safetensors"
        self._seed = settings.seed
        self._targets = splits.validation.x[:SHOWN_IMAGES]
        self._own = Images(*(part[:OWN_IMAGES] for part in splits.auxiliary))

    def draw(self, number: int) -> Picture:
        """Return the picture after a round; RunError where the state is not of this round."""
        tensors, metadata = read_tensors(self._path)
        if metadata.get("round") != str(number):
            raise RunError(f"{self._path} is not of round {number}")
        self._flat.load(tensors["model"])
        surface = SmashedData(self._flat.net)
        stream = make_generator(self._seed, "round-pictures", number)
        attacker = Attacker(surface, self._own, 1.0, stream, None)
        rebuild = KernelRidge(rows=OWN_IMAGES).learn(attacker)
        return draw_rows([self._targets, rebuild(surface.sample(self._targets, stream))])
