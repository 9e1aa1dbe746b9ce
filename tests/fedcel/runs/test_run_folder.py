"""A run's folder, by the text of its path."""

from hashlib import sha256
from pathlib import Path

import pytest
import torch
from torch import nn

import fedcel
from fedcel import runs
from fedcel.data import load_splits
from fedcel.errors import RunError
from fedcel.files import write_json, write_tensors
from fedcel.posterior import Chain, Trace
from fedcel.run_parts import init_net
from fedcel.settings import parse_settings
from tests.system.services import stored


def make_model(num_classes: int = 10) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Linear(4, num_classes))


def test_the_file_of_a_frozen_half_is_the_one_of_the_training(tmp_path: Path) -> None:
    """Its digest stands in the result; another file is refused."""
    weights, folder = tmp_path / "own.pth", tmp_path / "run"
    torch.save(make_model().state_dict(), weights)
    net = {"net.name": f"{__name__}:make_model", "net.cut": "1", "net.features": 4}
    settings = parse_settings(net | {"net.weights": str(weights), "net.frozen": "encoder"})
    runs.create_run(folder, settings)
    vector = init_net(settings, load_splits(settings.data, settings.clients, settings.seed)).vector
    write_tensors(folder / "model.safetensors", {"model": vector})
    (folder / "events.jsonl").touch()
    result = runs.evaluate_run(fedcel.read_run(folder), 0.0).result
    assert result["weights"] == f"sha256:{sha256(weights.read_bytes()).hexdigest()}"
    write_json(folder / "result.json", result)
    assert fedcel.read_run(folder).settings == settings
    torch.save(make_model().state_dict(), weights)
    with pytest.raises(RunError, match="another file than it was trained with: .* put the first"):
        fedcel.read_run(folder)


def test_a_run_is_read_by_the_text_of_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `fedcel.read_run("runs/mine")`, and so is all else that takes a folder."""
    monkeypatch.chdir(tmp_path)
    stored(Path("mine"))
    run = fedcel.read_run("mine")
    assert run.folder == Path("mine") and len(run.samples) == 3
    assert runs.find_writer("mine") is None
    with runs.hold_folder("mine"):
        assert runs.find_writer("mine")
    with runs.open_run("new", parse_settings({})):
        assert Path("new/settings.toml").exists()
    Path("new/.settings.toml.x1").touch()  # of a process that was killed while it wrote
    runs.create_run("new", parse_settings({"seed": 2}))  # of the first no round is lost
    assert runs.read_settings("new").seed == 2
    Path("new/events.jsonl").touch()
    with pytest.raises(RunError, match="new exists and is not empty"):
        runs.create_run("new", parse_settings({}))
    assert runs.partition_folder("states", 3) == Path("states/partition-000003")
    assert runs.ClientStateFolder("states").read_state(1) is None
    assert Chain("mine/chain", 3).list_rounds() == [0, 1, 2]
    assert Trace("mine/none").rounds == []
