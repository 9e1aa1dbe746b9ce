"""A whole run on a second device: a federation of convolutional nets, and attacks on it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fedcel import run_parts
from fedcel.attacks import AttackRow, averaging, decoder
from fedcel.files import read_json
from sims.attacking import attack_run
from tests.fedcel.elsewhere import pretended
from tests.sims.trained import events, model, run

CHANGE = {
    "net.name": "strided",
    "cel.kind": "gated",
    "local.augment": "affine",
    "local.steps": 15,
    "attack.names": "decoder,hybrid-inversion,rmle",
    "attack.seeds": 1,
    "attack.targets": 20,
    "attack.budget": 0.02,
}


def attacked(folder: Path) -> list[dict[str, Any]]:
    """Train and attack; return the attacks' rows without their times."""
    return [
        {k: v for k, v in row.items() if k != "seconds"}
        for row in map(AttackRow.to_json, attack_run(run(folder, **CHANGE)))
    ]


@pytest.mark.long
@pytest.mark.usefixtures("measured_leaks")
def test_a_run_elsewhere_is_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Model, rounds and result to the bit; attacks' scores up to what an order of sums changes."""
    on_cpu = attacked(tmp_path / "here")
    with pretended(monkeypatch, run_parts, decoder, averaging):
        elsewhere = attacked(tmp_path / "there")
    cpu_folder, other_folder = tmp_path / "here", tmp_path / "there"
    assert torch.equal(model(cpu_folder), model(other_folder))
    assert events(cpu_folder) == events(other_folder)
    results: list[Any] = [
        read_json(folder / "result.json") for folder in (cpu_folder, other_folder)
    ]
    assert results[0]["bits-beyond-label"] == results[1]["bits-beyond-label"]
    assert [row["attack"] for row in elsewhere] == [row["attack"] for row in on_cpu]
    for expected, actual in zip(on_cpu, elsewhere, strict=True):
        assert expected.keys() == actual.keys()
        for key, value in expected.items():
            near = isinstance(value, float)
            assert actual[key] == (pytest.approx(value, abs=1e-4) if near else value), key
