"""Scenarios: what they mean, and what is refused."""

from pathlib import Path

import pytest

from fedcel.errors import SettingsError
from sims import scenario

TEXT = """
title = "T"
[settings]
clients = 4
cel = { kind = "none" }
[bench]
seeds = "0,1"
[[variant]]
name = "none"
[[variant]]
name = "plain"
strength-key = "cel.weight"
strengths = "0.1,0.3"
settings = { cel = { kind = "plain" } }
"""


def written(folder: Path, text: str) -> str:
    """Return the path of a scenario file."""
    path = folder / "s.toml"
    path.write_text(text)
    return str(path)


def test_every_variant_strength_and_seed_is_a_cell(tmp_path: Path) -> None:
    """2 seeds x (1 + 2 strengths), each with its settings resolved."""
    plan = scenario.read(written(tmp_path, TEXT))
    found = scenario.cells(plan, {"rounds": 7})
    assert [cell.name for cell in found] == [
        "none-0",
        "none-1",
        "plain-0.1-0",
        "plain-0.1-1",
        "plain-0.3-0",
        "plain-0.3-1",
    ]
    last = found[-1].settings
    assert (last.cel.kind, last.cel.weight, last.seed, last.rounds) == ("plain", 0.3, 1, 7)


@pytest.mark.parametrize("name", scenario.packaged())
def test_packaged_scenarios_are_sound(name: str) -> None:
    """Each has an undefended variant to compare with."""
    plan = scenario.read(name)
    assert "none" in [variant.name for variant in plan.variants]
    assert scenario.cells(plan, {})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title = "T"', "titel = 1", "unknown key 'titel'"),
        ("clients = 4", "cleints = 4", "did you mean 'clients'"),
        ('seeds = "0,1"', 'seeds = "0,x"', "must be '0,1,2'"),
        ('seeds = "0,1"', 'seeds = "1,1"', "repeats a seed"),
        ('name = "plain"', 'name = "none"', "not all different"),
        ('name = "plain"', 'name = "../x"', "needs a name of letters"),
        ('strengths = "0.1,0.3"', "", "needs both strength-key and strengths"),
        ('strengths = "0.1,0.3"', 'strengths = "a"', "must be '0.1,0.3'"),
        ('strength-key = "cel.weight"', 'strength-key = "cel.wait"', "unknown setting 'cel.wait'"),
        ("[bench]", "[bench", "is not TOML"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    """Before anything is trained."""
    with pytest.raises((SettingsError, ValueError), match=message):
        scenario.read(written(tmp_path, TEXT.replace(old, new)))


def test_no_such_scenario_lists_the_packaged_ones() -> None:
    """Neither a name nor a file."""
    with pytest.raises(SettingsError, match="no scenario 'digts'.*digits"):
        scenario.read("digts")
