"""One variant's search: what it tries, and what it prefers."""

import optuna
import pytest

from fedcel.settings import Settings
from sims.bench import scenario
from sims.tuning import search
from sims.tuning.trial_journal import ValidationScore


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
