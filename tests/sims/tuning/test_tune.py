"""Tuning: equal trials, within the ranges, on validation images, repeatable."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedcel.errors import DivergedError, SettingsError
from fedcel.runs.run_folder import Run
from fedcel.settings import Settings, flatten_settings
from sims.bench import scenario
from sims.tuning import search, tune
from sims.tuning.search import Outcome, ValidationScore, open_journal, recall_outcomes
from tests.sims.tuning.plans import TEXT, read, tuned


def test_the_tuned_scenario_is_one_that_bench_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every value in its range, the same again, and no test image is ever looked at."""
    blind(monkeypatch)
    tune.write_scenario(tuned(read(tmp_path), 2, {}), tmp_path / "tuned.toml")
    found = scenario.list_cells(scenario.read_scenario(str(tmp_path / "tuned.toml")), {})
    assert [cell.variant.name for cell in found] == ["none", "plain"]
    assert all(0.1 <= cell.settings.local.step_size.rate <= 1 for cell in found)
    assert 0.1 <= found[1].settings.cel.weight <= 1
    assert found[1].settings.net.noise in (0.2, 0.4)


def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn the test images that tuning could reach into NaN."""
    read_run = search.run_folder.read_run

    def without_test(folder: Path) -> Run:
        run = read_run(folder)
        x = torch.full_like(run.splits.test.x, float("nan"))
        run.splits.__dict__["test"] = run.splits.test._replace(x=x)
        return run

    monkeypatch.setattr(search.run_folder, "read_run", without_test)
    search.run_folder.load_splits.cache_clear()


@pytest.fixture(autouse=True)
def fresh_data() -> Iterator[None]:
    """Read the data anew, before and after: `blind` writes to what is shared."""
    search.run_folder.load_splits.cache_clear()
    yield
    search.run_folder.load_splits.cache_clear()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('[tune]\nlocal = { rate = "0.1..1" }', "[tune]", "names no ranges"),
        ("0.1..1", "a..b", "must be 'LOW..HIGH'"),
        ("0.1..1", "2..1", "0 < LOW <= HIGH"),
        ("0.1..1", "0..1", "0 < LOW <= HIGH"),
        ('weight = "0.1..1"', 'wieght = "0.1..1"', "did you mean 'cel.weight'"),
        (
            "clients = 3",
            "clients = 3\ncel = { warm-up = 0 }\ndefence = { name = 'nopeek', strength = 1 }",
            "add one without",
        ),
        ("0.1..1", "0.1|0", "rate"),
        ("clients = 3", "clients = 3\ntune = { cel = { clusters = '1..4' } }", "clusters"),
        ("clients = 3", "clients = 3\ncel = { kind = 'plain', warm-up = 0 }", "add one without"),
        (TEXT[TEXT.index("[[variant]]") :], "", r"no \[\[variant\]\]"),
        (
            "clients = 3",
            "clients = 3\ndata = { validation = 3 }",
            "one image of each class at most",
        ),
    ],
)
def test_mistakes_are_named(
    tmp_path: Path, old: str, new: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is trained."""
    monkeypatch.setattr(search, "train_trial", lambda *_: pytest.fail("it was trained"))
    with pytest.raises(SettingsError, match=message):
        tuned(read(tmp_path, TEXT.replace(old, new, 1)), 1, {})


DEFENDED_FIRST = """
[settings]
clients = 3
[tune]
loss = 2
local = { rate = "0.1..1" }
[[variant]]
name = "plain"
settings = { clients = 4, cel = { kind = "plain", weight = 0.123456789 } }
[[variant]]
name = "none"
"""


def record(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Return the list of all settings that are trained with; nothing is trained."""
    seen: list[Settings] = []

    def trained(settings: Settings, title: str) -> Outcome:
        seen.append(settings)
        accuracy = 0.5 if settings.cel.kind == "none" else 0.47
        return ValidationScore(accuracy, 1.0, 0.4)

    monkeypatch.setattr(search, "train_trial", trained)
    return seen


def test_the_undefended_variant_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The floor needs its accuracy; the tables stay in the order of the file."""
    seen = record(monkeypatch)
    floors = {}
    look = tune.run_search

    def spy(plan: search.SearchPlan, **more: object) -> search.BestTrial:
        floors[plan.variant.name] = more["floor"]
        return look(plan, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(tune, "run_search", spy)
    table = tuned(read(tmp_path, DEFENDED_FIRST), 2, {})
    assert [s.cel.kind for s in seen] == ["none", "none", "plain", "plain"]
    assert floors == {"none": None, "plain": pytest.approx(0.48)}
    tune.write_scenario(table, tmp_path / "tuned.toml")
    plan = scenario.read_scenario(str(tmp_path / "tuned.toml"))
    assert [variant.name for variant in plan.variants] == ["plain", "none"]


def test_kept_variants_take_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are left out of the time that is left; where nothing was trained none is told."""
    record(monkeypatch)
    plan = read(tmp_path, DEFENDED_FIRST)
    tuned(plan, 1, {})
    assert "1/2 variants searched, about 0 s left\n" in capsys.readouterr().err
    tuned(plan, 1, {})
    assert "1/2 variants searched\n" in capsys.readouterr().err


def test_what_is_written_is_what_was_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every value has 4 digits before it is trained with; no other value is touched."""
    seen = record(monkeypatch)
    tune.write_scenario(tuned(read(tmp_path, DEFENDED_FIRST), 3, {}), tmp_path / "tuned.toml")
    assert all(float(f"{s.local.step_size.rate:.4g}") == s.local.step_size.rate for s in seen)
    found = scenario.list_cells(
        scenario.read_scenario(str(tmp_path / "tuned.toml")), {"engine": "local"}
    )
    assert all(cell.settings in seen for cell in found)
    assert found[0].settings.cel.weight == 0.123456789


def test_overrides_are_written_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into the common settings, and over a variant's own; bench then trains what was tuned."""
    seen = record(monkeypatch)
    given: search.FlatSettings = {"clients": 5, "net.noise": 0.2}
    table = tuned(read(tmp_path, DEFENDED_FIRST), 1, given)
    assert flatten_settings(table["settings"]) == given  # type: ignore[arg-type]
    tune.write_scenario(table, tmp_path / "tuned.toml")
    plan = scenario.read_scenario(str(tmp_path / "tuned.toml"))
    assert plan.variants[1].settings.keys() == {"local.rate"}
    found = scenario.list_cells(plan, {"engine": "local"})
    assert [cell.settings.clients for cell in found] == [5, 5]
    assert all(cell.settings in seen for cell in found)
    with pytest.raises(SettingsError, match="are at odds"):
        tuned(read(tmp_path, DEFENDED_FIRST), 1, {"local.rate": 1.0})


def test_only_diverged_trials_are_an_error_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not optuna's."""

    def diverge(settings: Settings, title: str) -> Outcome:
        return "the model is not finite"

    monkeypatch.setattr(search, "train_trial", diverge)
    with pytest.raises(DivergedError, match="none: all 2 trials diverged"):
        tuned(read(tmp_path), 2, {})


def test_a_score_that_is_not_finite_is_a_diverged_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Optuna would take no such value, and the search would never end."""
    monkeypatch.setattr(search, "score_run", lambda run: ValidationScore(0.9, 1.0, float("nan")))
    with pytest.raises(DivergedError, match="none: all 1 trials diverged"):
        tuned(read(tmp_path), 1, {})


@pytest.mark.long
def test_two_processes_find_what_one_finds(tmp_path: Path) -> None:
    """With real federations."""
    plan = read(tmp_path)
    one = tuned(plan, 1, {})
    outcomes = recall(tmp_path)
    (tmp_path / "s.log").unlink()
    assert tuned(plan, 1, {}, jobs=2) == one
    assert recall(tmp_path) == outcomes


def recall(folder: Path) -> dict[str, Outcome]:
    """Return the outcomes in the journal beside the scenario."""
    return recall_outcomes(open_journal(folder / "s.log"))


def test_a_trial_is_scored_on_several_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the mean of their scores; one that diverges ends its trial."""
    seen: list[int] = []

    def trained(settings: Settings, title: str) -> Outcome:
        seen.append(settings.seed)
        return ValidationScore(0.5 + 0.1 * settings.seed, settings.seed, 0.25)

    monkeypatch.setattr(search, "train_trial", trained)
    text = DEFENDED_FIRST.replace("loss = 2", "loss = 2\nseeds = '1,3'")
    found = tuned(read(tmp_path, text), 1, {})["variant"]
    assert isinstance(found, list)
    assert seen == [1, 3, 1, 3]
    assert found[0]["tuned"]["accuracy"] == pytest.approx(0.7)
    assert found[0]["tuned"]["bits-beyond-label"] == 2.0
    assert search.average_outcomes(iter([ValidationScore(1, 1, 1), "diverged"])) == "diverged"


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


@pytest.mark.filterwarnings("ignore:local.augment and chain.scope 'full'")
@pytest.mark.parametrize("name", scenario.list_packaged())
def test_packaged_scenarios_can_be_tuned(name: str) -> None:
    """Whatever a variant's ranges name is a setting of its kind, at both ends."""
    plan = scenario.read_scenario(name)
    for variant in plan.variants if plan.tune.ranges else ():
        assert tune.plan_search(plan, variant, {}).ranges
