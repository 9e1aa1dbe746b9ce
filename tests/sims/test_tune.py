"""Tuning: equal trials, within the ranges, on validation images, repeatable."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedcel.errors import SettingsError
from fedcel.runs import Run
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
    ],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    """Before anything is trained."""
    with pytest.raises(SettingsError, match=message):
        tune.tune(read(tmp_path, TEXT.replace(old, new, 1)), 1, {})
