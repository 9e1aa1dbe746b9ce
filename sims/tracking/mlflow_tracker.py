"""MLflow: a run in the store that MLflow's own environment names."""

import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from fedcel.files import write_whole
from fedcel.settings import Scalar
from sims.report.reconstruction_strips import encode_png
from sims.tracking.tracker import Picture

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# A server that is away would else be tried for minutes, while the training waits.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
from mlflow import MlflowClient
from mlflow.entities import Metric, Param

EXPERIMENT = "fedcel"
VALUE_LENGTH = 500
"""Characters of a parameter, which some stores cut."""


class MLflowTracker:
    """Writes a run into the experiment `fedcel`, or the one of MLFLOW_EXPERIMENT_NAME.

    The store is that of MLFLOW_TRACKING_URI, or MLflow's own default.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Scalar]) -> None:
        """Begin a run named as the folder."""
        self._client = MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        experiment = self._client.get_experiment_by_name(name)
        place = experiment.experiment_id if experiment else self._client.create_experiment(name)
        self._run = self._client.create_run(place, run_name=folder.name).info.run_id
        values = [Param(key, str(value)[:VALUE_LENGTH]) for key, value in settings.items()]
        for start in range(0, len(values), 100):  # a call takes no more
            self._client.log_batch(self._run, params=values[start : start + 100])

    def log_scores(self, scores: Mapping[str, float], number: int) -> None:
        """Write metrics."""
        now = round(1000 * time.time())
        metrics = [Metric(name, value, now, number) for name, value in scores.items()]
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
