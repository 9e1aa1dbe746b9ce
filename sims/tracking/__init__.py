"""Trackers: a run's settings, scores and pictures in TensorBoard, MLflow, W&B or a user's own."""

from sims.tracking.track_run import track_run
from sims.tracking.tracker import TRACKERS, Picture, Tracker, TrackerFactory, load_trackers

__all__ = ["TRACKERS", "Picture", "Tracker", "TrackerFactory", "load_trackers", "track_run"]
