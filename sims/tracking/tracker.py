"""The protocol of a tracker, and the trackers that come with fedcel, by name."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, TypeAlias, cast

import numpy as np
from jaxtyping import UInt8

from fedcel.errors import SettingsError
from fedcel.extras import missing_extra_error
from fedcel.plugins import load_object
from fedcel.settings import Scalar

Picture: TypeAlias = UInt8[np.ndarray, "height width 3"]
"""Red, green and blue, 0 to 255."""
TRACKERS = {
    "tensorboard": "sims.tracking.tensorboard_tracker:TensorBoardTracker",
    "mlflow": "sims.tracking.mlflow_tracker:MLflowTracker",
    "wandb": "sims.tracking.wandb_tracker:WandbTracker",
}
"""Import strings by name; the name is also that of the package that it needs."""


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


def load_trackers(names: Sequence[str]) -> dict[str, TrackerFactory]:
    """Return the factory of each tracker, by name, before the training.

    Args:
        names: Of `TRACKERS`, or import strings `package.module:object`.

    Raises:
        SettingsError: There is no such tracker, or it cannot be called.
        PluginError: An import string names nothing.
        MissingExtraError: A package is not installed; it names what brings it.
    """
    factories = {}
    for name in names:
        if name not in TRACKERS and ":" not in name:
            raise SettingsError(
                f"--track is {name!r}, must be {', '.join(TRACKERS)}, or your own as "
                "'package.module:object'"
            )
        if name in TRACKERS and find_spec(name) is None:
            missing = missing_extra_error(name)
            assert missing is not None
            raise missing
        factory = load_object(TRACKERS.get(name, name))
        if not callable(factory):
            raise SettingsError(
                f"--track {name!r} is no class and no function; it is called with (folder, "
                "settings) and returns a tracker"
            )
        factories[name] = cast(TrackerFactory, factory)
    return factories
