"""Tuning: equal trials, within the ranges, on validation images, repeatable."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedcel.errors import DivergedError, SettingsError
from fedcel.runs import Run
from fedcel.settings import Settings, flatten
from sims import scenario, tune

TEXT = """
[settings]
clients = 3
rounds = 5
local = { steps = 3 }
[tune]
local = { rate = "0.1..1" }
[[variant]]
name = "none"
[[variant]]
name = "plain"
settings = { cel = { kind = "plain", warm-up = 0 } }
[variant.tune]
cel = { weight = "0.1..1" }
net = { noise = "0.2|0.4" }
"""


def read(folder: Path, text: str = TEXT) -> scenario.Scenario:
    """Return the scenario of this text."""
    path = folder / "s.toml"
    path.write_text(text)
    return scenario.read(str(path))


def test_the_tuned_scenario_is_one_that_bench_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every value in its range, the same again, and no test image is ever looked at."""
    blind(monkeypatch)
    tables = [tune.tune(read(tmp_path), 2, {}) for _ in range(2)]
    assert tables[0] == tables[1]
    tune.write(tables[0], tmp_path / "tuned.toml")
    found = scenario.cells(scenario.read(str(tmp_path / "tuned.toml")), {})
    assert [cell.variant.name for cell in found] == ["none", "plain"]
    assert all(0.1 <= cell.settings.local.rate <= 1 for cell in found)
    assert 0.1 <= found[1].settings.cel.weight <= 1
    assert found[1].settings.net.noise in (0.2, 0.4)


def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn the test images that tuning could reach into NaN."""
    read_run = tune.runs.read

    def without_test(folder: Path) -> Run:
        run = read_run(folder)
        x = torch.full_like(run.splits.test.x, float("nan"))
        run.splits.__dict__["test"] = run.splits.test._replace(x=x)
        return run

    monkeypatch.setattr(tune.runs, "read", without_test)
    tune.runs.load.cache_clear()


@pytest.fixture(autouse=True)
def fresh_data() -> Iterator[None]:
    """Read the data anew, before and after: `blind` writes to what is shared."""
    tune.runs.load.cache_clear()
    yield
    tune.runs.load.cache_clear()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('[tune]\nlocal = { rate = "0.1..1" }', "[tune]", "names no ranges"),
        ("0.1..1", "a..b", "must be 'LOW..HIGH'"),
        ("0.1..1", "2..1", "0 < LOW <= HIGH"),
        ("0.1..1", "0..1", "0 < LOW <= HIGH"),
        ('weight = "0.1..1"', 'wieght = "0.1..1"', "did you mean 'cel.weight'"),
        ("clients = 3", "clients = 3\ncel = { kind = 'plain', warm-up = 0 }", "add one without"),
        (TEXT[TEXT.index("[[variant]]") :], "", r"no \[\[variant\]\]"),
    ],
)
def test_mistakes_are_named(
    tmp_path: Path, old: str, new: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is trained."""
    monkeypatch.setattr(tune, "trained", lambda settings: pytest.fail("it was trained"))
    with pytest.raises(SettingsError, match=message):
        tune.tune(read(tmp_path, TEXT.replace(old, new, 1)), 1, {})


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

    def trained(settings: Settings) -> tune.Score:
        seen.append(settings)
        return (0.5, 1.0) if settings.cel.kind == "none" else (0.47, 1.0)

    monkeypatch.setattr(tune, "trained", trained)
    return seen


def test_the_undefended_variant_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The floor needs its accuracy; the tables stay in the order of the file."""
    seen = record(monkeypatch)
    floors = {}
    search = tune.search

    def spy(plan: tune.Plan, trials: int, floor: float | None) -> tuple[tune.Flat, tune.Score]:
        floors[plan.variant.name] = floor
        return search(plan, trials, floor)

    monkeypatch.setattr(tune, "search", spy)
    table = tune.tune(read(tmp_path, DEFENDED_FIRST), 2, {})
    assert [s.cel.kind for s in seen] == ["none", "none", "plain", "plain"]
    assert floors == {"none": None, "plain": pytest.approx(0.48)}
    tune.write(table, tmp_path / "tuned.toml")
    plan = scenario.read(str(tmp_path / "tuned.toml"))
    assert [variant.name for variant in plan.variants] == ["plain", "none"]


def test_what_is_written_is_what_was_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every value has 4 digits before it is trained with; no other value is touched."""
    seen = record(monkeypatch)
    tune.write(tune.tune(read(tmp_path, DEFENDED_FIRST), 3, {}), tmp_path / "tuned.toml")
    assert all(float(f"{s.local.rate:.4g}") == s.local.rate for s in seen)
    found = scenario.cells(scenario.read(str(tmp_path / "tuned.toml")), {"engine": "loop"})
    assert all(cell.settings in seen for cell in found)
    assert found[0].settings.cel.weight == 0.123456789


def test_overrides_are_written_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into the common settings, and over a variant's own; bench then trains what was tuned."""
    seen = record(monkeypatch)
    given: tune.Flat = {"clients": 5, "net.noise": 0.2}
    table = tune.tune(read(tmp_path, DEFENDED_FIRST), 1, given)
    assert flatten(table["settings"]) == given  # type: ignore[arg-type]
    tune.write(table, tmp_path / "tuned.toml")
    plan = scenario.read(str(tmp_path / "tuned.toml"))
    assert plan.variants[1].settings.keys() == {"local.rate"}
    found = scenario.cells(plan, {"engine": "loop"})
    assert [cell.settings.clients for cell in found] == [5, 5]
    assert all(cell.settings in seen for cell in found)
    with pytest.raises(SettingsError, match="are at odds"):
        tune.tune(read(tmp_path, DEFENDED_FIRST), 1, {"local.rate": 1.0})


def test_only_diverged_trials_are_an_error_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not optuna's."""

    def diverge(settings: Settings) -> tune.Score:
        raise DivergedError("the model is not finite")

    monkeypatch.setattr(tune, "trained", diverge)
    with pytest.raises(DivergedError, match="none: all 2 trials diverged"):
        tune.tune(read(tmp_path), 2, {})
