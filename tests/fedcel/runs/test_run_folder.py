"""A run's folder, by the text of its path."""

from pathlib import Path

import pytest

import fedcel
from fedcel import runs
from fedcel.errors import RunError
from fedcel.posterior import Chain, Trace
from fedcel.settings import parse_settings
from tests.system.services import stored


def test_a_run_is_read_by_the_text_of_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `fedcel.read_run("runs/mine")`, and so is all else that takes a folder."""
    monkeypatch.chdir(tmp_path)
    stored(Path("mine"))
    run = fedcel.read_run("mine")
    assert run.folder == Path("mine") and len(run.samples) == 3
    assert runs.read_model("mine").settings == runs.read_settings("mine")
    assert not runs.has_begun(run.settings, "mine")
    assert runs.find_writer("mine") is None
    with runs.hold_folder("mine"):
        assert runs.find_writer("mine")
    with runs.open_run("new", parse_settings({})):
        assert Path("new/settings.toml").exists()
    with pytest.raises(RunError, match="new exists and is not empty"):
        runs.create_run("new", parse_settings({}))
    assert runs.partition_folder("states", 3) == Path("states/partition-000003")
    assert runs.ClientStateFolder("states").read_state(1) is None
    assert Chain("mine/chain", 3).list_rounds() == [0, 1, 2]
    assert Trace("mine/none").rounds == []
