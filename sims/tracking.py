"""Trackers: a run's settings, scores and a picture in TensorBoard, MLflow, W&B or a user's own.

Whatever fails in a tracker is told once and ends nothing.
"""

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, TypeAlias, cast

import numpy as np
from jaxtyping import Float, UInt8
from torch import Tensor

from fedcel.errors import SettingsError, describe_unforeseen, shorten_text
from fedcel.extras import missing_extra_error
from fedcel.files import read_json, read_tensors, write_whole
from fedcel.plugins import load_object
from fedcel.runs import GUESSES_FILE, Event, EventCallback
from fedcel.settings import Scalar, Settings, dump_settings, flatten_settings
from sims.progress import print_line
from sims.report.reconstruction_strips import Strip, encode_png, make_grid
from sims.results.records import RESULT_FILE

Picture: TypeAlias = UInt8[np.ndarray, "height width 3"]
"""Red, green and blue, 0 to 255."""
FOLDER = "tracking"
"""In a run's folder: what trackers write there."""
PROJECT = "fedcel"
MLFLOW_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # A server that is away would else be tried for minutes, while the training waits.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
GUESSES = "final/test images, and the exact attacker's guesses"
"""Name of the picture."""


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


class TensorBoardTracker:
    """Writes `tracking/tensorboard` in the run's folder: `tensorboard --logdir runs` shows all."""

    def __init__(self, folder: Path, settings: Mapping[str, Scalar]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / FOLDER / "tensorboard"))
        rows = [f"| {key} | {value} |" for key, value in settings.items()]
        self._writer.add_text("settings", "\n".join(["| setting | value |", "|---|---|", *rows]), 0)

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


class MLflowTracker:
    """Writes a run, named as its folder, into the experiment of MLFLOW_EXPERIMENT_NAME."""

    def __init__(self, folder: Path, settings: Mapping[str, Scalar]) -> None:
        os.environ.update({k: os.environ.get(k, v) for k, v in MLFLOW_ENVIRONMENT.items()})
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._client, self._metric = MlflowClient(), Metric
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        place = experiment.experiment_id if experiment else self._client.create_experiment(name)
        self._run = self._client.create_run(place, run_name=folder.name).info.run_id
        values = [Param(key, str(value)[:500]) for key, value in settings.items()]  # stores cut it
        for start in range(0, len(values), 100):  # a call takes no more
            self._client.log_batch(self._run, params=values[start : start + 100])

    def log_scores(self, scores: Mapping[str, float], number: int) -> None:
        """Write metrics."""
        now = round(1000 * time.time())
        metrics = [self._metric(name, value, now, number) for name, value in scores.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def log_picture(self, name: str, picture: Picture, number: int) -> None:
        """Write a picture as an artifact, with the round in its name."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name.replace('/', '-')}, round {number:06d}.png"
            write_whole(path, encode_png(picture))
            self._client.log_artifact(self._run, str(path), "pictures")

    def close(self, *, is_finished: bool) -> None:
        """End the run."""
        self._client.set_terminated(self._run, "FINISHED" if is_finished else "FAILED")


class WandbTracker:
    """Writes `tracking/wandb` in the run's folder, offline unless WANDB_MODE says otherwise."""

    def __init__(self, folder: Path, settings: Mapping[str, Scalar]) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        place = folder / FOLDER
        place.mkdir(exist_ok=True)
        self._image = wandb.Image
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
        self._run.log({name: self._image(picture)}, step=number)

    def close(self, *, is_finished: bool) -> None:
        """End the run."""
        self._run.finish(exit_code=int(not is_finished))


TRACKERS: dict[str, TrackerFactory] = {
    "tensorboard": TensorBoardTracker,
    "mlflow": MLflowTracker,
    "wandb": WandbTracker,
}
"""Trackers by the name of the package that each needs."""


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
        if name in TRACKERS and find_spec(name) is None and (lack := missing_extra_error(name)):
            raise lack
        factory = TRACKERS.get(name) or load_object(name)
        if not callable(factory):
            raise SettingsError(
                f"--track {name!r} is no class and no function; it is called with (folder, "
                "settings) and returns a tracker"
            )
        factories[name] = cast(TrackerFactory, factory)
    return factories


class RunTracking:
    """Trackers of one run, made when a round or the run has ended; each that fails is left out."""

    def __init__(
        self, factories: Mapping[str, TrackerFactory], folder: Path, settings: Settings
    ) -> None:
        self._waiting, self._trackers = dict(factories), dict[str, Tracker]()
        self._folder, self._settings = folder, settings
        self._number = 0

    def log_round(self, event: Event) -> None:
        """Hand on the numbers of a round."""
        self._number = int(str(event["round"]))
        self._make_trackers()
        self._log_scores(dict(list_numbers(event)))

    def log_result(self) -> None:
        """Hand on the scores of the finished run, and the exact attacker's guesses."""
        self._number = self._number or self._settings.rounds  # which were done before a resumption
        self._make_trackers()
        result = read_json(self._folder / RESULT_FILE)
        assert isinstance(result, dict)
        self._log_scores({f"final/{key}": value for key, value in list_numbers(result)})
        with self._guard("pictures of guesses"):  # images of a user's own may have other forms
            tensors, _ = read_tensors(self._folder / GUESSES_FILE)
            picture = draw_rows([tensors["targets"], *tensors["guesses"].unbind(1)])
            self._tell(lambda tracker: tracker.log_picture(GUESSES, picture, self._number))

    def close(self, *, is_finished: bool) -> None:
        """Let the trackers write what is left."""
        self._tell(lambda tracker: tracker.close(is_finished=is_finished))

    def _make_trackers(self) -> None:
        """Make the trackers that there are not yet."""
        settings = flatten_settings(dump_settings(self._settings))
        while self._waiting:
            name, factory = self._waiting.popitem()
            with self._guard(name):
                self._trackers[name] = factory(self._folder, settings)

    def _log_scores(self, scores: Mapping[str, float]) -> None:
        self._tell(lambda tracker: tracker.log_scores(scores, self._number))

    def _tell(self, act: Callable[[Tracker], None]) -> None:
        for name, tracker in [*self._trackers.items()]:
            with self._guard(name):
                act(tracker)

    @contextmanager
    def _guard(self, name: str) -> Iterator[None]:
        """Report a failure of another package, or of a user's own part, and leave that out."""
        try:
            yield
        except (Exception, SystemExit) as error:
            self._trackers.pop(name, None)
            reason = shorten_text(describe_unforeseen(error))
            print_line(f"--track {name} failed: {reason}; the run goes on without it")


def draw_rows(rows: Sequence[Float[Tensor, "N C H W"]]) -> Picture:
    """Return rows of images in [0, 1] below one another, small images enlarged, on white."""
    grid = make_grid([Strip("", "", row.clamp(0, 1).numpy()) for row in rows])
    opacity = grid[..., 3:].astype(np.float64) / 255
    blended = grid[..., :3] * opacity + 255 * (1 - opacity)
    return np.ascontiguousarray(blended.round().astype(np.uint8))


@contextmanager
def track_run(
    factories: Mapping[str, TrackerFactory], folder: Path, settings: Settings
) -> Iterator[EventCallback | None]:
    """Track the run that is trained within the block.

    Args:
        factories: Of the trackers, by name.
        folder: The run's, which need not exist yet.
        settings: The run's.

    Yields:
        Callback for each round's event; None where there is no tracker.
    """
    if not factories:
        yield None
        return
    tracking = RunTracking(factories, folder, settings)
    is_finished = False
    try:
        yield tracking.log_round
        tracking.log_result()
        is_finished = True
    finally:
        tracking.close(is_finished=is_finished)


def list_numbers(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the finite numbers of an object, those of objects in it as `outer/inner`."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from list_numbers(value, f"{name}/")
        elif isinstance(value, bool) or not isinstance(value, int | float) or name == "round":
            continue
        elif math.isfinite(value):
            yield name, float(value)
