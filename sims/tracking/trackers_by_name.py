"""Find trackers by name, and refuse before the training what cannot be loaded."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import NamedTuple, cast

from fedcel.errors import SettingsError
from fedcel.extras import missing_extra_error
from fedcel.plugins import load_object
from sims.tracking.tracker import TrackerFactory


class PackagedTracker(NamedTuple):
    """A tracker that comes with fedcel."""

    reference: str
    package: str
    """What it needs, by the name that is imported."""


TRACKERS = {
    "tensorboard": PackagedTracker(
        "sims.tracking.tensorboard_tracker:TensorBoardTracker", "tensorboard"
    ),
    "mlflow": PackagedTracker("sims.tracking.mlflow_tracker:MLflowTracker", "mlflow"),
    "wandb": PackagedTracker("sims.tracking.wandb_tracker:WandbTracker", "wandb"),
}


def load_trackers(names: Sequence[str]) -> dict[str, TrackerFactory]:
    """Return what makes each tracker, by name; packages are imported for those alone.

    Args:
        names: Of `TRACKERS`, or import strings `package.module:object`.

    Raises:
        SettingsError: There is no such tracker, or it cannot be called.
        PluginError: An import string names nothing.
        MissingExtraError: A package is not installed; it names what brings it.
    """
    factories = {}
    for name in names:
        packaged = TRACKERS.get(name)
        if packaged is None and ":" not in name:
            raise SettingsError(
                f"--track is {name!r}, must be {', '.join(TRACKERS)}, or your own as "
                "'package.module:object'"
            )
        if packaged and find_spec(packaged.package) is None:
            missing = missing_extra_error(packaged.package)
            assert missing is not None
            raise missing
        factory = load_object(packaged.reference if packaged else name)
        if not callable(factory):
            raise SettingsError(
                f"--track {name!r} is no class and no function; it is called with (folder, "
                "settings) and returns a tracker"
            )
        factories[name] = cast(TrackerFactory, factory)
    return factories
