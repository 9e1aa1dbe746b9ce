"""What a tracker has to have: three methods, and a way to be made."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
from jaxtyping import UInt8

from fedcel.settings import Scalar

Picture: TypeAlias = UInt8[np.ndarray, "height width 3"]
"""Red, green and blue, 0 to 255."""


class Tracker(Protocol):
    """Takes the numbers and pictures of one run. What it raises is told once and ends nothing."""

    def log_scores(self, scores: Mapping[str, float], number: int) -> None:
        """Take scores by name, of round `number`; those of the finished run begin with `final/`."""
        ...

    def log_picture(self, name: str, picture: Picture, number: int) -> None:
        """Take a picture after round `number`; one of the same name is of a later round."""
        ...

    def close(self, *, is_finished: bool) -> None:
        """Write what is left; the training may have ended before its end."""
        ...


class TrackerFactory(Protocol):
    """Makes a tracker when the first round has ended: a class, or a function."""

    def __call__(self, folder: Path, settings: Mapping[str, Scalar]) -> Tracker:
        """Return a tracker of one run.

        Args:
            folder: The run's; what a tracker writes there belongs into `tracking/`.
            settings: All settings of the run, by their dotted keys.
        """
        ...
