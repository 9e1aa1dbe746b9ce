"""TensorBoard: event files in the run's folder."""

from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from fedcel.settings import Scalar
from sims.tracking.tracker import Picture

FOLDER = Path("tracking") / "tensorboard"


class TensorBoardTracker:
    """Writes `tracking/tensorboard` in the run's folder: `tensorboard --logdir runs` shows all."""

    def __init__(self, folder: Path, settings: Mapping[str, Scalar]) -> None:
        """Begin the files with a table of the settings."""
        self._writer = SummaryWriter(str(folder / FOLDER))
        rows = [f"| {key} | {value} |" for key, value in settings.items()]
        table = "\n".join(["| setting | value |", "|---|---|", *rows])
        self._writer.add_text("settings", table, 0)

    def log_scores(self, scores: Mapping[str, float], number: int) -> None:
        """Write scalars."""
        for name, value in scores.items():
            self._writer.add_scalar(name, value, number)

    def log_picture(self, name: str, picture: Picture, number: int) -> None:
        """Write an image."""
        self._writer.add_image(name, picture, number, dataformats="HWC")

    def close(self, *, is_finished: bool) -> None:
        """Write what is left."""
        self._writer.close()
