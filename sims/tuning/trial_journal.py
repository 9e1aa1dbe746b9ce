"""The journal of a tuning: optuna's file of studies and trials, from which a search goes on."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

from fedcel.errors import RunError
from fedcel.files import write_whole
from fedcel.settings import Settings, dump_settings, flatten_settings


class ValidationScore(NamedTuple):
    """Scores of a federation on the validation set."""

    accuracy: float
    bits: float  # beyond the label, for the optimal attacker
    nll: float  # nats


Outcome = ValidationScore | str
"""The score of a trial, or why it diverged."""


def journal_path(out: Path) -> Path:
    """Return where the trials behind a tuned scenario are kept."""
    return out.with_name(f"{out.name}.journal.log")


def open_journal(path: Path) -> BaseStorage:
    """Open the journal, made where there is none; several processes may have it open.

    optuna would write behind a last line that was cut off, and could never read the file again.
    So that line is removed: its trial counts as interrupted. RunError on any other damage.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    backend = JournalFileBackend(str(path))
    (lock := JournalFileSymlinkLock(str(path))).acquire()
    try:
        *lines, cut_off = path.read_bytes().split(b"\n")
        if cut_off:
            write_whole(path, b"".join(line + b"\n" for line in lines))
    finally:
        lock.release()
    try:
        return JournalStorage(backend)
    except Exception as error:  # whatever optuna's replay stumbles over
        raise RunError(
            f"{path} is damaged or no journal of trials ({error}); remove it, or name another "
            "--out, to search from the beginning"
        ) from error


def settings_id(settings: Settings) -> str:
    """Return the identity of a federation: every setting that it is trained with."""
    return json.dumps(flatten_settings(dump_settings(settings)), sort_keys=True)


def mark_trial(trial: optuna.Trial, federation: str, outcome: Outcome) -> None:
    """Write a federation's settings and outcome beside its trial."""
    trial.set_user_attr("settings", federation)
    trial.set_user_attr("outcome", outcome if isinstance(outcome, str) else outcome._asdict())


def recall_outcomes(storage: BaseStorage) -> dict[str, Outcome]:
    """Return the outcome of every federation in the journal by its settings, whatever the search.

    A search of another length, goal or floor is another study, and takes them.
    """
    names = optuna.get_all_study_names(storage)
    studies = [optuna.load_study(study_name=name, storage=storage) for name in names]
    marks = [trial.user_attrs for study in studies for trial in study.trials]
    return {mark["settings"]: read_outcome(mark) for mark in marks if "outcome" in mark}


def read_outcome(mark: Mapping[str, Any]) -> Outcome:
    """Return the outcome that `mark_trial` wrote."""
    outcome = mark["outcome"]
    return str(outcome) if isinstance(outcome, str) else ValidationScore(**outcome)
