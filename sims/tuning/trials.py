"""What tuning has trained already: one line a trial, so that a stopped search goes on.

Not a storage of optuna's: it keeps trials of one study under their numbers. Here a federation is
known by all settings it was trained with, so that searches of other variants, goals or lengths
take it, and a search that was stopped ends as one that was not; optuna's sampler, drawn anew from
the trials before each, has no state to lose.
"""

import json
from pathlib import Path
from typing import NamedTuple

from fedcel.errors import RunError
from fedcel.files import write_whole
from fedcel.settings import Settings, dump_settings, flatten_settings


class Score(NamedTuple):
    """What a federation is worth on the validation set."""

    accuracy: float
    bits: float  # beyond the label, for the optimal attacker
    nll: float  # nats


Outcome = Score | str
"""The score of a trial, or why it diverged."""
Memory = dict[str, Outcome]


def trial_id(settings: Settings) -> str:
    """Return what a trial is known by: every setting it was trained with."""
    return json.dumps(flatten_settings(dump_settings(settings)), sort_keys=True)


def trials_path(out: Path) -> Path:
    """Return where the trials behind a tuned scenario are kept."""
    return out.with_name(f"{out.name}.trials.jsonl")


def recall_trials(store: Path) -> Memory:
    """Return the trials kept in `store`; a last line that was cut off is removed from it.

    RunError when another line is damaged.
    """
    if not store.exists():
        return {}
    *lines, rest = store.read_bytes().split(b"\n")
    if rest:
        write_whole(store, b"".join(line + b"\n" for line in lines))
    found: Memory = {}
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            trial = json.dumps(entry["settings"], sort_keys=True)
            if "diverged" in entry:
                found[trial] = str(entry["diverged"])
            else:
                keys = ("accuracy", "bits-beyond-label", "nll")
                found[trial] = Score(*(float(entry[key]) for key in keys))
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(
                f"{store} is damaged: line {number} is no trial ({error!r}); remove that line"
            ) from None
    return found


def keep_trial(store: Path, settings: Settings, outcome: Outcome) -> None:
    """Append a trial in one write: several processes may, and each line stays whole."""
    entry: dict[str, object] = {"settings": flatten_settings(dump_settings(settings))}
    if isinstance(outcome, Score):
        entry |= {"accuracy": outcome.accuracy, "bits-beyond-label": outcome.bits}
        entry["nll"] = outcome.nll
    else:
        entry["diverged"] = outcome
    line = json.dumps(entry, allow_nan=False)
    store.parent.mkdir(parents=True, exist_ok=True)
    with store.open("ab", buffering=0) as file:
        file.write(f"{line}\n".encode())
