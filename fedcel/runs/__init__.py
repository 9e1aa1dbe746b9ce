"""A run on disk: its folder, its round log, its clients' states, its evaluation."""

from fedcel.runs.evaluation import Evaluation, evaluate_run, store_evaluation
from fedcel.runs.round_log import RoundLog
from fedcel.runs.run_folder import Run, create_run, read_run, read_settings
from fedcel.runs.server_run import ServerRun

__all__ = [
    "Evaluation",
    "RoundLog",
    "Run",
    "ServerRun",
    "create_run",
    "evaluate_run",
    "read_run",
    "read_settings",
    "store_evaluation",
]
