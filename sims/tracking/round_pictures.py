"""What an attacker makes of messages in the middle of a training, as a picture."""

from pathlib import Path

from fedcel.attacks import Attacker, KernelRidge
from fedcel.data import Images, load_splits
from fedcel.errors import RunError
from fedcel.files import read_tensors
from fedcel.leakage import SmashedData
from fedcel.run_parts import init_net
from fedcel.seeding import make_generator
from fedcel.settings import Settings
from sims.tracking.pictures import draw_rows
from sims.tracking.tracker import Picture

SHOWN_IMAGES = 8
OWN_IMAGES = 200
"""Of the attacker, at most, with one message each: the effort grows as the cube of both.

It never sees an image that is shown.
"""


class RoundPictures:
    """Draws the first validation images, and what kernel ridge rebuilds from one message of each.

    The model is read from the run's folder, so that the training knows nothing of it.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        """Load the run's images.

        Args:
            folder: The run's.
            settings: The run's.

        Raises:
            FedcelError: Images or net cannot be built.
        """
        splits = load_splits(settings.data, settings.clients, settings.seed)
        self._flat = init_net(settings, splits)
        self._path = folder / "state" / "server.safetensors"
        self._seed = settings.seed
        self._targets = splits.validation.x[:SHOWN_IMAGES]
        self._own = Images(*(part[:OWN_IMAGES] for part in splits.auxiliary))

    def draw(self, number: int) -> Picture:
        """Return the picture after a round.

        Args:
            number: The round; its state is in the folder.

        Raises:
            RunError: The state is not that of this round.
        """
        tensors, metadata = read_tensors(self._path)
        if metadata.get("round") != str(number):
            raise RunError(f"{self._path} is not of round {number}")
        self._flat.load(tensors["model"])
        surface = SmashedData(self._flat.net)
        stream = make_generator(self._seed, "round-pictures", number)
        rebuild = KernelRidge(rows=OWN_IMAGES).learn(
            Attacker(surface, self._own, 1.0, stream, None)
        )
        return draw_rows([self._targets, rebuild(surface.sample(self._targets, stream))])
