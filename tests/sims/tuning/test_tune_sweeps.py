"""Tuning of variants that sweep a strength: what is searched, kept, and gone on with."""

from pathlib import Path

import pytest

from fedcel.settings import Settings
from sims.bench import scenario
from sims.tuning import search, tune
from sims.tuning.trial_journal import Outcome, ValidationScore, open_journal, recall_outcomes
from tests.sims.tuning.plans import read, tuned

SEVERAL = """
[settings]
clients = 3
[tune]
local = { rate = "0.1..1" }
[[variant]]
name = "sweep"
strength-key = "defence.strength"
strengths = "0.5,2,8"
settings = { defence = { name = "nopeek" } }
[[variant]]
name = "noisy"
strength-key = "net.noise"
strengths = "0,0.5"
[[variant]]
name = "none"
"""


def landscape(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Return the list of what is trained; scores depend on the step size, small ones diverge."""
    seen: list[Settings] = []

    def trained(settings: Settings, title: str) -> Outcome:
        seen.append(settings)
        if settings.local.step_size.rate < 0.2:
            return "the model is not finite"
        rate = settings.local.step_size.rate
        return ValidationScore(1 - abs(rate - 0.5), 2 * rate, abs(rate - 0.3))

    monkeypatch.setattr(search, "train_trial", trained)
    return seen


def test_a_sweep_is_tuned_at_its_first_strength(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is not 0; a rival defence is a defence; the floor is that of a net that sweeps not."""
    seen = landscape(monkeypatch)
    floors: list[object] = []
    look = tune.run_search

    def spy(plan: search.SearchPlan, **more: object) -> search.BestTrial:
        floors.append(more["floor"])
        return look(plan, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(tune, "run_search", spy)
    table = tuned(read(tmp_path, SEVERAL), 9, {})
    assert [s.defence.used_strength for s in seen] == [0.0] * 18 + [0.5] * 9
    assert [s.net.noise for s in seen[:18]] == [0.5] * 9 + [0.3] * 9
    found = table["variant"]
    assert isinstance(found, list)
    assert [v["tuned"]["trials"] for v in found] == [9, 9, 9]
    assert [v["tuned"].get("strength") for v in found] == [0.5, 0.5, None]
    assert floors == [None, None, pytest.approx(found[2]["tuned"]["accuracy"] - 0.01)]
    assert found[1]["tuned"]["accuracy"] != found[2]["tuned"]["accuracy"]
    assert "strength" not in found[0]["settings"]["defence"]
    tune.write_scenario(table, tmp_path / "tuned.toml")
    cells = scenario.list_cells(scenario.read_scenario(str(tmp_path / "tuned.toml")), {})
    assert [cell.strength for cell in cells] == [0.5, 2, 8, 0, 0.5, None]


def test_a_strength_is_searched_with_the_rest_and_leads_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written as the first of the strengths, not as a setting that the sweep overrides."""
    seen: list[float] = []

    def trained(settings: Settings, title: str) -> Outcome:
        seen.append(settings.defence.used_strength)
        return ValidationScore(0.9, abs(settings.defence.used_strength - 3), 1.0)

    monkeypatch.setattr(search, "train_trial", trained)
    text = SEVERAL.replace(
        'settings = { defence = { name = "nopeek" } }',
        'settings = { defence = { name = "nopeek" } }\ntune = { defence = { strength = "1|2|4" } }',
    ).replace('rate = "0.1..1"', 'rate = "0.5"')
    table = tuned(read(tmp_path, text), 3, {})
    found = table["variant"]
    assert isinstance(found, list)
    assert seen[-3:] == [1, 2, 4]
    assert found[0]["tuned"]["strength"] == 2
    assert found[0]["strengths"] == "2,0.5,8"
    assert found[0]["settings"] == {"defence": {"name": "nopeek"}, "local": {"rate": 0.5}}
    assert "strengths" not in found[2]
    tune.write_scenario(table, tmp_path / "tuned.toml")
    plan = scenario.read_scenario(str(tmp_path / "tuned.toml"))
    assert plan.variants[0].strengths == [2, 0.5, 8]
    assert [cell.settings.defence.used_strength for cell in scenario.list_cells(plan, {})][:3] == [
        2,
        0.5,
        8,
    ]


@pytest.mark.parametrize("stop", [0.03, 0.33, 0.34, 0.95])
def test_a_stopped_search_goes_on_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: float
) -> None:
    """Wherever it stops, even within a line; at most the trial under way is trained again."""
    landscape(monkeypatch)
    journal = tmp_path / "s.log"
    whole = tuned(read(tmp_path, SEVERAL), 9, {})
    data = journal.read_bytes()
    journal.write_bytes(data[: int(stop * len(data))])
    recalled = len(recall_outcomes(open_journal(journal)))
    assert abs(recalled - 27 * stop) < 2
    seen = landscape(monkeypatch)
    assert tuned(read(tmp_path, SEVERAL), 9, {}) == whole
    assert len(seen) == 27 - recalled
    assert tuned(read(tmp_path, SEVERAL), 9, {}) == whole
    assert len(seen) == 27 - recalled


def test_more_trials_go_on_with_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To where one call would have come; a federation is known whatever floor it is held to."""
    seen = landscape(monkeypatch)
    whole = tuned(read(tmp_path, SEVERAL), 9, {})
    (tmp_path / "s.log").unlink()
    fewer = tuned(read(tmp_path, SEVERAL), 4, {})
    seen.clear()
    assert tuned(read(tmp_path, SEVERAL), 9, {}) == whole
    assert len(seen) <= 17
    seen.clear()
    assert tuned(read(tmp_path, SEVERAL), 4, {}) == fewer
    assert not seen


def test_kept_trials_of_other_settings_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do they change what is suggested."""
    seen = landscape(monkeypatch)
    tuned(read(tmp_path, SEVERAL), 5, {"rounds": 50})
    other = tuned(read(tmp_path, SEVERAL), 5, {})
    assert len(seen) == 30
    (tmp_path / "s.log").unlink()
    assert tuned(read(tmp_path, SEVERAL), 5, {}) == other


def test_all_variants_may_be_tuned_for_likelihood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defended or not: the trial of least NLL, not the one that is most accurate or leaks least."""
    landscape(monkeypatch)
    likely = SEVERAL.replace("[tune]", "[tune]\ngoal = 'nll'").replace("0.1..1", "0.2|0.3|0.5")
    found = tuned(read(tmp_path, likely), 3, {})["variant"]
    assert isinstance(found, list)
    assert [v["settings"]["local"]["rate"] for v in found] == [0.3] * 3
    assert [v["tuned"]["nll"] for v in found] == [0.0] * 3
