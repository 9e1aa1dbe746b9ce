"""One variant's search: what it tries, and what it prefers."""

from pathlib import Path

import optuna
import pytest

from fedcel.errors import RunError
from fedcel.settings import Settings
from sims.bench import scenario
from sims.tuning import search
from sims.tuning.search import (
    Outcome,
    ValidationScore,
    journal_path,
    mark_trial,
    open_journal,
    recall_outcomes,
    settings_id,
)


def plan(ranges: dict[str, search.SearchRange]) -> search.SearchPlan:
    variant = scenario.make_plain_variant("mine")
    return search.SearchPlan(variant, {}, ranges, Settings(), None, scenario.Tune({}))


def ask(study: optuna.Study, base: search.SearchPlan, trials: int) -> optuna.Trial:
    """Return the next trial of a search that is not over."""
    trial = search.ask_trial(study, base, search.list_grid(base, trials), trials)
    assert trial is not None
    return trial


def test_the_floor_decides() -> None:
    """Half a bit a point: two points below the floor cost one bit, none above it."""
    low, high = ValidationScore(0.93, 1.0, 0.3), ValidationScore(0.96, 1.5, 0.2)
    assert search.tuning_objective(low, "leak", None) == 0.93
    assert search.tuning_objective(low, "leak", 0.95) == pytest.approx(-2.0)
    assert search.tuning_objective(high, "leak", 0.95) == -1.5
    for floor in (0.95, None):
        assert search.tuning_objective(low, "nll", floor) == -0.3


def test_the_sampler_learns_from_the_trials_before() -> None:
    """After the random start, suggestions follow what did well; interrupted trials do not count."""
    base = plan({"local.rate": (0.1, 1.0)})
    means = []
    for best in (0.2, 0.9):
        study = optuna.create_study(direction="maximize")
        rates = []
        for _ in range(20):
            interrupted, trial = ask(study, base, 20), ask(study, base, 20)
            assert trial.params == interrupted.params
            rates.append(trial.params["local.rate"])
            study.tell(trial, -abs(rates[-1] - best))
        assert search.ask_trial(study, base, [], 20) is None
        means.append(sum(rates[10:]) / 10)
    assert means[0] + 0.2 < means[1]


def test_a_small_grid_is_tried_whole() -> None:
    """Three rates and two noises in six trials: each once, in order; in five, by the sampler."""
    base = plan({"local.rate": [0.5, 1.0, 2.0], "net.noise": [0.3, 0.4]})

    def tried(trials: int) -> list[tuple[object, ...]]:
        study = optuna.create_study(direction="maximize")
        for _ in range(trials):
            ask(study, base, trials)  # interrupted
            study.tell(ask(study, base, trials), 0.5)
        assert search.ask_trial(study, base, search.list_grid(base, trials), trials) is None
        return [tuple(trial.params.values()) for trial in search.list_ended(study)]

    assert tried(6) == [(0.5, 0.3), (0.5, 0.4), (1.0, 0.3), (1.0, 0.4), (2.0, 0.3), (2.0, 0.4)]
    assert len(set(tried(5))) < 5


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
