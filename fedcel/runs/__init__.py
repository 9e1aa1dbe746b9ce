"""A run on disk: its folder, its round log, its clients' states, its evaluation, its posterior."""

from typing import TYPE_CHECKING

from fedcel.lazy import export_lazily as _export_lazily

if TYPE_CHECKING:
    from fedcel.runs.client_state import ClientStateFolder as ClientStateFolder
    from fedcel.runs.client_state import missing_states_error as missing_states_error
    from fedcel.runs.client_state import partition_folder as partition_folder
    from fedcel.runs.evaluation import GUESSES_FILE as GUESSES_FILE
    from fedcel.runs.evaluation import NOISE_DRAWS as NOISE_DRAWS
    from fedcel.runs.evaluation import Evaluation as Evaluation
    from fedcel.runs.evaluation import build_sent_net as build_sent_net
    from fedcel.runs.evaluation import calibrate_answers as calibrate_answers
    from fedcel.runs.evaluation import evaluate_run as evaluate_run
    from fedcel.runs.evaluation import fit_run_prior as fit_run_prior
    from fedcel.runs.evaluation import list_versions as list_versions
    from fedcel.runs.evaluation import posterior_samples as posterior_samples
    from fedcel.runs.evaluation import predict_labelled as predict_labelled
    from fedcel.runs.evaluation import predict_references as predict_references
    from fedcel.runs.evaluation import write_evaluation as write_evaluation
    from fedcel.runs.folder_lock import find_writer as find_writer
    from fedcel.runs.folder_lock import hold_folder as hold_folder
    from fedcel.runs.posterior import Posterior as Posterior
    from fedcel.runs.round_log import Event as Event
    from fedcel.runs.round_log import read_last_event as read_last_event
    from fedcel.runs.run_folder import Run as Run
    from fedcel.runs.run_folder import create_run as create_run
    from fedcel.runs.run_folder import open_run as open_run
    from fedcel.runs.run_folder import parse_run_settings as parse_run_settings
    from fedcel.runs.run_folder import read_run as read_run
    from fedcel.runs.run_folder import read_settings as read_settings
    from fedcel.runs.run_folder import refuse_occupied as refuse_occupied
    from fedcel.runs.server_run import EventCallback as EventCallback
    from fedcel.runs.server_run import ServerRun as ServerRun
else:
    __all__, __getattr__, __dir__ = _export_lazily(__name__, __file__)
