"""One variant's search: what it tries, and what it prefers."""

import pytest

from sims.bench import scenario
from sims.tuning import search


def plan(among: dict[str, search.Among]) -> search.SearchPlan:
    """Return a search among these values."""
    return search.SearchPlan(scenario.make_plain_variant("mine"), {}, among, 0, True, None, "leak")


def test_the_floor_decides() -> None:
    """Half a bit a point: two points below the floor cost one bit, none above it."""
    low, high = search.Score(0.93, 1.0, 0.3), search.Score(0.96, 1.5, 0.2)
    assert search.objective(low, "leak", None) == 0.93
    assert search.objective(low, "leak", 0.95) == pytest.approx(-2.0)
    assert search.objective(high, "leak", 0.95) == -1.5
    assert search.objective(low, "nll", 0.95) == search.objective(low, "nll", None) == -0.3


def test_the_sampler_learns_from_the_trials_before() -> None:
    """After the random start, suggestions follow what did well; the same again for the same."""
    base = plan({"local.rate": (0.1, 1.0)})
    means = []
    for best in (0.2, 0.9):
        tried: list[search.Trial] = []
        for _ in range(20):
            params = search.suggest_trial(base, tried, None, 20)
            assert params == search.suggest_trial(base, tried, None, 20)
            score = search.Score(-abs(float(params["local.rate"]) - best), 0.0, 0.0)
            tried.append(search.Trial(params, {}, score))
        means.append(sum(float(t.params["local.rate"]) for t in tried[10:]) / 10)
    assert means[0] + 0.2 < means[1]


def test_a_small_grid_is_tried_whole() -> None:
    """Three rates and two noises in six trials: each once, in order; in five, by the sampler."""
    grid = plan({"local.rate": [0.5, 1.0, 2.0], "net.noise": [0.3, 0.4]})

    def tried(trials: int) -> list[tuple[object, ...]]:
        past: list[search.Trial] = []
        for _ in range(trials):
            params = search.suggest_trial(grid, past, None, trials)
            past.append(search.Trial(params, {}, search.Score(0.5, 1.0, 0.4)))
        return [tuple(trial.params.values()) for trial in past]

    assert tried(6) == [(0.5, 0.3), (0.5, 0.4), (1.0, 0.3), (1.0, 0.4), (2.0, 0.3), (2.0, 0.4)]
    assert len(set(tried(5))) < 5
