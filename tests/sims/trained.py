"""Small federations trained into a folder, and what they left there."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedcel.files import read_tensors
from fedcel.runs import run_folder
from fedcel.settings import Settings, parse_settings
from sims.engines import local
from sims.engines.simulate import simulate
from tests.sims.small import CLUSTERED

STEERED = {
    "cel.kind": "cluster",
    "cel.penalty": "log",
    "cel.target": "spread",
    "cel.goal": 0.001,
    "cel.threshold": 0.01,
}

FOLLOWING = {
    "cel.schedule": "target",
    "cel.target": "spread",
    "cel.goal": 0.0001,
    "cel.ramp": 0.5,
    "local.balance": True,
}
"""A weight that follows a spread."""


def run(folder: Path, **change: Any) -> Path:
    """Train a small federation."""
    simulate(parse_settings(CLUSTERED | change), folder)
    return folder


def model(folder: Path) -> torch.Tensor:
    return read_tensors(folder / "model.safetensors")[0]["model"]


def events(folder: Path) -> list[dict[str, Any]]:
    """Return the rounds' events without their times."""
    lines = (folder / "events.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def stop_after(number: int, folder: Path, **change: Any) -> Settings:
    """Train until Ctrl-C after a round, and return the settings; `folder` can be gone on with."""
    settings = parse_settings(CLUSTERED | change)
    run_folder.create_run(folder, settings)

    def tell(event: dict[str, object]) -> None:
        if event["round"] == number:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        local.train_locally(settings, folder, tell)
    return settings
