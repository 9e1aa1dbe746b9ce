"""Shadow federations: who is a member, what is observed, and a command that goes on."""

import json
from pathlib import Path

import pytest
import torch

from fedcel.errors import RunError
from fedcel.files import read_tensors, write_tensors
from fedcel.settings import Settings, parse_settings
from membership import app, deal_half, observe_federation
from sims.commands.main import main

FEW = {
    "clients": 2, "rounds": 3, "local.steps": 4, "net.width": 8, "net.features": 4,
    "temperature": 0.0, "chain.scope": "full",
}  # fmt: skip
SCENARIO = """
[settings]
clients = 2
rounds = 2
temperature = 0.0
local = { steps = 2 }
net = { width = 8, features = 4 }
update = { clip = 1.0, noise = 1.0 }
"""


def small(**changes: object) -> Settings:
    return parse_settings({**FEW, **changes})


def test_halves_are_random_and_half() -> None:
    """Two shadows share about a quarter of the images; members are those trained on."""
    observed = [observe_federation(small(seed=shadow)) for shadow in (0, 1)]
    members = [part["member"] for part in observed]
    count = len(members[0])
    assert [int(part.sum()) for part in members] == [count // 2] * 2
    assert 0.2 < float((members[0] & members[1]).double().mean()) < 0.3
    trained = torch.cat([*deal_half(small(seed=0))])
    assert sorted(trained.tolist()) == members[0].nonzero()[:, 0].tolist()
    assert observed[0]["message"].shape == observed[0]["update"].shape == (count, 2)
    assert observed[0]["answer"].shape == (count, 1)
    assert all(part.isfinite().all() for part in observed[0].values())


def test_an_upload_tells_its_own_images() -> None:
    """One long round on few images: members' confidence in the best client's model is higher."""
    changes = {"local.steps": 150, "net.width": 48, "net.features": 16, "net.noise": 0.1}
    still = {"local.schedule": "constant", "strategy.momentum": 0.0, "cel.kind": "none"}
    observed = observe_federation(small(seed=3, **changes, **still))
    confidence, cosine = observed["update"].T
    members = observed["member"]
    assert float(confidence[members].mean()) > float(confidence[~members].mean()) + 0.1
    assert float(cosine[members].mean()) != float(cosine[~members].mean())
    assert float(observed["accuracy"][0]) > float(observed["accuracy"][1])


def test_the_command_writes_rows_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Six rows of a variant, its epsilon; a second call trains nothing; other settings are told."""
    scenario, out = tmp_path / "few.toml", tmp_path / "out"
    scenario.write_text(SCENARIO)
    words = [str(scenario), "--out", str(out), "--shadows", "8", "--targets", "4"]
    assert main(words, app) == 0
    table = capsys.readouterr().out
    assert "likelihood-ratio" in table
    rows = json.loads((out / "membership.json").read_text())
    assert len(rows) == 6
    assert {row["observation"] for row in rows} == {"message", "answer", "update"}
    assert all(0.3 < row["auc"] < 0.7 and row["auc-low"] < row["auc-high"] for row in rows)
    assert all(row["update-epsilon"] > row["epsilon-shown"] >= 0 for row in rows)
    (first, *_) = paths = sorted((out / "run-0").glob("*.safetensors"))
    assert len(paths) == 12
    before = first.stat().st_mtime_ns
    assert main(words, app) == 0
    assert first.stat().st_mtime_ns == before
    tensors, _ = read_tensors(first)
    write_tensors(first, tensors, {"settings": "others"})
    capsys.readouterr()
    assert main(words, app) != 0
    assert "was made with other settings" in capsys.readouterr().err
    assert issubclass(RunError, Exception)


def test_too_few_shadows_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is trained."""
    words = ["membership", "--out", str(tmp_path / "out"), "--shadows", "7"]
    assert main(words, app) == 2
    assert "--shadows is 7, must be 8 or more" in capsys.readouterr().err
    assert main([*words[:-1], "8", "--targets", "1"], app) == 2
    assert "--targets is 1" in capsys.readouterr().err
