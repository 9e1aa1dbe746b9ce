"""A run on disk: its folder, its round log, its clients' states, its evaluation."""

from fedcel.runs.evaluation import (
    NOISE_DRAWS,
    Evaluation,
    evaluate_run,
    posterior_samples,
    store_evaluation,
)
from fedcel.runs.round_log import RoundLog
from fedcel.runs.run_folder import Run, create_run, parse_run_settings, read_run, read_settings
from fedcel.runs.server_run import Clients, ServerRun, ShowRound

__all__ = [
    "NOISE_DRAWS",
    "Clients",
    "Evaluation",
    "RoundLog",
    "Run",
    "ServerRun",
    "ShowRound",
    "create_run",
    "evaluate_run",
    "parse_run_settings",
    "posterior_samples",
    "read_run",
    "read_settings",
    "store_evaluation",
]
