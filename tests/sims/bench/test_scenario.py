"""Scenarios: what they mean, and what is refused."""

from pathlib import Path

import pytest

from fedcel.data import Digits, Npz
from fedcel.errors import SettingsError
from sims.bench import scenario

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
    plan = scenario.read_scenario(written(tmp_path, TEXT))
    found = scenario.list_cells(plan, {"rounds": 7})
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


def test_without_a_list_of_seeds_the_settings_seed_is_the_one(tmp_path: Path) -> None:
    """[settings] seed counts unless [bench] names seeds, and --set seed counts before both."""
    alone = TEXT.replace('seeds = "0,1"', "").replace("clients = 4", "clients = 4\nseed = 7")
    plan = scenario.read_scenario(written(tmp_path, alone))
    assert {cell.settings.seed for cell in scenario.list_cells(plan, {})} == {7}
    listed = scenario.read_scenario(
        written(tmp_path, TEXT.replace("clients = 4", "clients = 4\nseed = 7"))
    )
    assert {cell.settings.seed for cell in scenario.list_cells(listed, {})} == {0, 1}
    assert {cell.settings.seed for cell in scenario.list_cells(listed, {"seed": 5})} == {5}


@pytest.mark.parametrize("value", ["abc", 1.5, -1])
def test_a_seed_that_is_none_is_refused(tmp_path: Path, value: str | float) -> None:
    """Overridden or in the file, it is the settings that say why."""
    plan = scenario.read_scenario(written(tmp_path, TEXT))
    with pytest.raises(SettingsError, match=f"seed is '?{value}"):
        scenario.list_cells(plan, {"seed": value})


def test_seeds_of_a_bench_are_overridden(tmp_path: Path) -> None:
    """bench.seeds leaves the settings alone; other keys of [bench] do not exist."""
    plan = scenario.read_scenario(written(tmp_path, TEXT))
    more, rest = scenario.override_seeds(plan, {"bench.seeds": "3,4,5", "rounds": 7})
    assert rest == {"rounds": 7}
    assert {cell.settings.seed for cell in scenario.list_cells(more, rest)} == {3, 4, 5}
    assert scenario.override_seeds(plan, {"rounds": 7}) == (plan, {"rounds": 7})
    with pytest.raises(SettingsError, match="unknown key 'seed'"):
        scenario.override_seeds(plan, {"bench.seed": 1})
    with pytest.raises(SettingsError, match="repeats a seed"):
        scenario.override_seeds(plan, {"bench.seeds": "1,1"})
    with pytest.raises(SettingsError, match="both seed and bench.seeds"):
        scenario.override_seeds(plan, {"bench.seeds": "1,2", "seed": 1})


def test_a_data_folder_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the run is attacked from anywhere; 'none' is no folder, digits are in none."""
    monkeypatch.chdir(tmp_path)
    plan = scenario.read_scenario(written(tmp_path, TEXT))
    assert scenario.list_cells(plan, {})[0].settings.data.source == Digits()
    for path, expected in (("none", "none"), ("images", str(tmp_path / "images"))):
        keys = {"data.source": "npz", "data.path": path}
        assert scenario.list_cells(plan, keys)[0].settings.data.source == Npz(path=expected)


@pytest.mark.filterwarnings("ignore:local.augment and chain.scope")  # `temperature` is a study
@pytest.mark.parametrize("name", scenario.list_packaged())
def test_packaged_scenarios_are_sound(name: str) -> None:
    """Each has an undefended variant to compare with."""
    plan = scenario.read_scenario(name)
    assert "none" in [variant.name for variant in plan.variants]
    assert scenario.list_cells(plan, {})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            *('title = "T"', "titel = 1"),
            r"the top level has an unknown key 'titel'; did you mean 'title'\? "
            "Allowed: bench, settings, title, tune, variant$",
        ),
        ("clients = 4", "cleints = 4", "did you mean 'clients'"),
        ('seeds = "0,1"', 'seeds = "0,x"', "must be '0,1,2'"),
        ('seeds = "0,1"', 'seeds = "1,1"', "repeats a seed"),
        ('name = "plain"', 'name = "none"', "not all different"),
        ('name = "plain"', 'name = "../x"', "needs a name of letters"),
        ('strengths = "0.1,0.3"', "", "needs both strength-key and strengths"),
        ('strengths = "0.1,0.3"', 'strengths = "a"', "must be '0.1,0.3'"),
        ('strengths = "0.1,0.3"', 'strengths = "0.1,0.10"', "repeats a strength"),
        ("[bench]", "[tune]\nloss = 'x'\n[bench]", "loss is 'x'"),
        ("[bench]", "[tune]\nloss = nan\n[bench]", "loss is nan"),
        ("[bench]", "[tune]\nseeds = '0,x'\n[bench]", r"\[tune\] seeds is '0,x', must be"),
        ("[bench]", "[tune]\nseeds = '1,1'\n[bench]", r"\[tune\] seeds '1,1' repeats"),
        ("[bench]", "[tune]\ngoal = 'ece'\n[bench]", "goal is 'ece', must be leak or nll"),
        ('strength-key = "cel.weight"', 'strength-key = "cel.wait"', "unknown setting 'cel.wait'"),
        ("[bench]", "[bench", "is not TOML"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    """Before anything is trained."""
    with pytest.raises((SettingsError, ValueError), match=message):
        scenario.read_scenario(written(tmp_path, TEXT.replace(old, new)))


def test_no_such_scenario_lists_the_packaged_ones() -> None:
    """Neither a name nor a file; the nearest name is offered, where one is near."""
    with pytest.raises(SettingsError, match=r"no scenario 'digts'; did you mean 'digits'\?"):
        scenario.read_scenario("digts")
    with pytest.raises(SettingsError, match="no scenario '/x/y.toml'; give a TOML file or one of"):
        scenario.read_scenario("/x/y.toml")


@pytest.mark.parametrize(
    ("swept", "variant", "common", "begins"),
    [
        ("cel.weight", "cel = { kind = 'plain' }", "", True),
        ("cel.weight", "cel = { kind = 'plain' }, local = { rate = 0.5 }", "", True),
        ("cel.weight", "cel = { kind = 'plain' }, net = { noise = 0.5 }", "", False),
        ("cel.ramp", "cel = { kind = 'plain' }", "", False),
        (
            "cel.weight",
            "cel = { kind = 'plain' }, defence = { name = 'dropout', strength = 0.5 }",
            "",
            False,
        ),
        ("defence.strength", "defence = { name = 'dropout' }", "", True),
        ("defence.strength", "defence = { name = 'nopeek' }", "", True),
        ("defence.strength", "defence = { name = 'nopeek' }, cel = { kind = 'plain' }", "", False),
        ("defence.strength", "defence = { name = 'noise' }", "", False),
        ("defence.strength", "defence = { name = 'noise' }", "net = { noise = 0.0 }", True),
        ("defence.strength", "defence = { name = 'nopeek' }, net = { noise = 0.4 }", "", False),
        ("net.noise", "", "", False),
    ],
)
def test_which_sweeps_begin_at_the_undefended_net(
    tmp_path: Path, swept: str, variant: str, common: str, begins: bool
) -> None:
    """Where at strength 0 nothing but rates is left of the difference."""
    path = written(
        tmp_path,
        f"[settings]\n{common}\n[[variant]]\nname = 'none'\n[[variant]]\nname = 'x'\n"
        f"strength-key = '{swept}'\nstrengths = '0.5'\nsettings = {{ {variant} }}\n",
    )
    bare, cell = scenario.list_cells(scenario.read_scenario(path), {})
    assert scenario.is_anchored(cell, bare.settings) is begins
    assert not scenario.is_anchored(cell._replace(strength=None), bare.settings)
    assert not scenario.is_defended(bare.settings)
    assert scenario.is_defended(cell.settings) is (variant != "")


def test_a_narrower_net_is_no_beginning(tmp_path: Path) -> None:
    """A bottleneck of no values is not the undefended net."""
    path = written(
        tmp_path,
        "[[variant]]\nname = 'none'\n[[variant]]\nname = 'x'\nstrength-key = 'defence.strength'"
        "\nstrengths = '8'\nsettings = { defence = { name = 'bottleneck' } }\n",
    )
    bare, cell = scenario.list_cells(scenario.read_scenario(path), {})
    assert not scenario.is_anchored(cell, bare.settings)
