"""Kept trials: each line whole, the last perhaps cut off, no other damaged."""

import json
from pathlib import Path

import pytest

from fedcel.errors import RunError
from fedcel.settings import Settings
from sims.tuning.trials import Score, keep_trial, recall_trials, trial_id, trials_path


def test_kept_and_recalled(tmp_path: Path) -> None:
    """Scores to the last bit, divergence in words; other settings are other trials."""
    store = trials_path(tmp_path / "new" / "x.toml")
    one, two = Settings(), Settings(rounds=7)
    assert recall_trials(store) == {}
    keep_trial(store, one, Score(0.1 + 0.2, 1 / 3, 2 / 7))
    keep_trial(store, two, "the model is not finite")
    assert recall_trials(store) == {
        trial_id(one): Score(0.1 + 0.2, 1 / 3, 2 / 7),
        trial_id(two): "the model is not finite",
    }
    assert store == tmp_path / "new" / "x.toml.trials.jsonl"


def test_a_line_that_was_cut_off_is_forgotten(tmp_path: Path) -> None:
    """And the next trial does not run into it."""
    store = tmp_path / "t.jsonl"
    keep_trial(store, Settings(), Score(0.5, 1.0, 0.4))
    with store.open("ab") as file:
        file.write(b'{"settings": {"see')
    kept = recall_trials(store)
    assert len(kept) == 1
    keep_trial(store, Settings(seed=1), Score(0.6, 1.0, 0.4))
    assert len(recall_trials(store)) == 2


@pytest.mark.parametrize(
    "damage",
    ["", "[]", "{}", '{"settings": {}}', "\xff", json.dumps({"settings": 1, "accuracy": 1})],
)
def test_a_damaged_line_is_named(tmp_path: Path, damage: str) -> None:
    """The file, and which line."""
    store = tmp_path / "t.jsonl"
    keep_trial(store, Settings(), Score(0.5, 1.0, 0.4))
    with store.open("a") as file:
        file.write(f"{damage}\n")
    with pytest.raises(RunError, match="line 2 is no trial"):
        recall_trials(store)
