"""Weights & Biases: files in the run's folder, and nothing leaves the machine unasked."""

import os
from collections.abc import Mapping
from pathlib import Path

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
import wandb

from fedcel.settings import Scalar
from sims.tracking.tracker import Picture

FOLDER = "tracking"
PROJECT = "fedcel"


class WandbTracker:
    """Writes `tracking/wandb` in the run's folder; `wandb sync` sends it where it is wanted.

    It is offline unless WANDB_MODE says otherwise. The project is `fedcel`, or WANDB_PROJECT.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Scalar]) -> None:
        """Begin a run named as the folder."""
        place = folder / FOLDER
        place.mkdir(exist_ok=True)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.name,
            config=dict(settings),
            dir=str(place),
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=wandb.Settings(silent=True, console="off", disable_git=True),
        )

    def log_scores(self, scores: Mapping[str, float], number: int) -> None:
        """Write a row of scores."""
        self._run.log(dict(scores), step=number)

    def log_picture(self, name: str, picture: Picture, number: int) -> None:
        """Write an image."""
        self._run.log({name: wandb.Image(picture)}, step=number)

    def close(self, *, is_finished: bool) -> None:
        """End the run."""
        self._run.finish(exit_code=int(not is_finished))
