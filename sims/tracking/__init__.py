"""Trackers: a run's settings, scores and pictures in TensorBoard, MLflow, W&B or a user's own."""

from sims.tracking.track_run import RunTracking, track_run
from sims.tracking.tracker import Picture, Tracker, TrackerFactory
from sims.tracking.trackers_by_name import TRACKERS, load_trackers

__all__ = [
    "TRACKERS",
    "Picture",
    "RunTracking",
    "Tracker",
    "TrackerFactory",
    "load_trackers",
    "track_run",
]
