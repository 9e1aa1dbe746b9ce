"""The journal of trials: what is marked is recalled, a cut line is removed, damage is named."""

from pathlib import Path

import optuna
import pytest

from fedcel.errors import RunError
from fedcel.settings import Settings
from sims.tuning.trial_journal import (
    Outcome,
    ValidationScore,
    journal_path,
    mark_trial,
    open_journal,
    recall_outcomes,
    settings_id,
)

SCORE = ValidationScore(0.1 + 0.2, 1 / 3, 2 / 7)


def keep(journal: Path, settings: Settings, outcome: Outcome, search: str = "one") -> None:
    study = optuna.create_study(
        storage=open_journal(journal), study_name=search, load_if_exists=True
    )
    mark_trial(study.ask(), settings_id(settings), outcome)


def recall(journal: Path) -> dict[str, Outcome]:
    return recall_outcomes(open_journal(journal))


def test_kept_and_recalled(tmp_path: Path) -> None:
    """Scores to the last bit, divergence in words; of every search; other settings are others."""
    journal = journal_path(tmp_path / "new" / "x.toml")
    assert journal == tmp_path / "new" / "x.toml.journal.log"
    settings, longer = Settings(), Settings(rounds=7)
    assert recall(journal) == {}
    keep(journal, settings, SCORE)
    keep(journal, longer, "the model is not finite", "another")
    assert recall(journal) == {
        settings_id(settings): SCORE,
        settings_id(longer): "the model is not finite",
    }


def test_a_line_that_was_cut_off_is_removed(tmp_path: Path) -> None:
    """And the next trial does not run into it."""
    journal = tmp_path / "j.log"
    keep(journal, Settings(), SCORE)
    with journal.open("ab") as file:
        file.write(b'{"op_code": 4, "wor')
    assert len(recall(journal)) == 1
    keep(journal, Settings(seed=1), SCORE)
    assert len(recall(journal)) == 2


@pytest.mark.parametrize(
    "damage", [b"", b"[]", b"{}", b'{"op_code": 99}', b'{"settings": 1}', b"\xff"]
)
def test_a_damaged_line_is_an_error_of_ours(tmp_path: Path, damage: bytes) -> None:
    """It names the file and the remedy; optuna's own message says neither."""
    journal = tmp_path / "j.log"
    keep(journal, Settings(), SCORE)
    *lines, last = journal.read_bytes().splitlines()
    journal.write_bytes(b"\n".join([*lines, damage, last, b""]))
    with pytest.raises(RunError, match=r"j\.log is damaged .*; remove it"):
        recall(journal)
