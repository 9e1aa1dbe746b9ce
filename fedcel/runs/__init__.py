"""A run on disk: its folder, its round log, its clients' states, its evaluation, its posterior."""

from fedcel.runs.client_state import (
    ClientMemory,
    ClientStateFolder,
    StoredState,
    keep_state,
    load_state,
    missing_states_error,
    partition_folder,
)
from fedcel.runs.evaluation import (
    GUESSES_FILE,
    NOISE_DRAWS,
    Evaluation,
    build_sent_net,
    calibrate_answers,
    evaluate_run,
    list_versions,
    posterior_samples,
    predict_labelled,
    predict_references,
    write_evaluation,
)
from fedcel.runs.folder_lock import FolderWriter, find_writer, hold_folder
from fedcel.runs.posterior import Posterior
from fedcel.runs.round_log import Event
from fedcel.runs.run_folder import (
    Run,
    create_run,
    has_begun,
    open_run,
    parse_run_settings,
    read_model,
    read_run,
    read_settings,
)
from fedcel.runs.server_run import EventCallback, ServerRun

__all__ = [
    "GUESSES_FILE",
    "NOISE_DRAWS",
    "ClientMemory",
    "ClientStateFolder",
    "Evaluation",
    "Event",
    "EventCallback",
    "FolderWriter",
    "Posterior",
    "Run",
    "ServerRun",
    "StoredState",
    "build_sent_net",
    "calibrate_answers",
    "create_run",
    "evaluate_run",
    "find_writer",
    "has_begun",
    "hold_folder",
    "keep_state",
    "list_versions",
    "load_state",
    "missing_states_error",
    "open_run",
    "parse_run_settings",
    "partition_folder",
    "posterior_samples",
    "predict_labelled",
    "predict_references",
    "read_model",
    "read_run",
    "read_settings",
    "write_evaluation",
]
