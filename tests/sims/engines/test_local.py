"""The local engine by itself."""

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedcel.data import load_splits
from fedcel.federation import play_round, round_trainer
from fedcel.losses.contract import RESERVED_METRICS
from fedcel.nets import NetSettings
from fedcel.run_parts import build_client_parts, build_server_parts, init_net, init_run_state
from fedcel.runs import ClientStateFolder, partition_folder
from fedcel.settings import parse_settings
from sims.engines.local import LocalTrainer
from sims.engines.simulate import simulate

PROGRAM = """
import sys
sys.modules.update({name: None for name in ("flwr", "ray")})
from importlib import metadata
find = metadata.version
def version(name):
    if name in ("flwr", "ray"):
        raise metadata.PackageNotFoundError(name)
    return find(name)
metadata.version = version
from pathlib import Path
from fedcel.settings import parse_settings
from sims.engines.simulate import simulate
raw = {"engine": "local", "rounds": 2, "clients": 2, "local.steps": 2, "temperature": 0.0,
       "data.test": 40}
simulate(parse_settings(raw), Path(sys.argv[1]))
"""


def send_image(
    shape: tuple[int, ...], classes: int, net: NetSettings
) -> tuple[nn.Module, nn.Module]:
    return nn.Flatten(), nn.Linear(64, classes)


def test_images_themselves_may_be_sent(tmp_path: Path) -> None:
    """A reshape computes nothing; and the caller's number of threads is back afterwards."""
    raw = {"net.name": f"{__name__}:send_image", "net.features": 64}
    small = {"engine": "local", "rounds": 2, "clients": 2, "local.steps": 2, "data.test": 40}
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        simulate(parse_settings(raw | small), tmp_path / "run")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["flops-per-inference"] == 0


def test_a_client_whose_training_diverged_goes_on_from_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory as on the disk, where updates have noise and a state is kept of each client."""
    settings = parse_settings(
        {"clients": 3, "rounds": 9, "local.steps": 3, "net.features": 8, "net.width": 16}
        | {"cel.kind": "gated", "cel.warm-up": 0, "update.clip": 1.0, "update.noise": 0.5}
        | {"engine": "local", "temperature": 0.0}
    )
    splits = load_splits(settings.data, settings.clients, settings.seed)
    flat = init_net(settings, splits)
    parts, state = build_server_parts(settings, splits.classes), init_run_state(settings, flat)
    sizes = dict(enumerate(splits.client_sizes))
    trainer = LocalTrainer(build_client_parts(settings), tmp_path, 1)
    train = round_trainer.train_clients

    def diverge(*arguments: Any) -> list[Any]:
        updates = list(train(*arguments))
        if arguments[3].number != 3 or len(arguments[2][0].images.y) != sizes[1]:
            return updates
        return [
            update._replace(
                delta=update.delta * torch.nan,
                state={name: value * torch.nan for name, value in update.state.items()},
            )
            for update in updates
        ]

    monkeypatch.setattr(round_trainer, "train_clients", diverge)
    for number in range(1, 6):
        expected = pytest.warns(match="not finite") if number == 3 else nullcontext()
        with expected:
            state, _ = play_round(parts, state, sizes, trainer, device_size=flat.device_size)
        folder = ClientStateFolder(partition_folder(tmp_path, 1), 1)
        kept = folder.read_state(number)
        assert kept is not None and all(tensor.isfinite().all() for tensor in kept.values())


def test_a_local_run_needs_neither_flower_nor_ray(tmp_path: Path) -> None:
    """Training and evaluation, versions included, where neither is installed.

    Nothing that the line of a round tells can be the name of a loss's metric.
    """
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "run")]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    result = (tmp_path / "run" / "result.json").read_text()
    assert '"torch"' in result
    assert '"ray"' not in result
    *_, line = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    assert json.loads(line).keys() <= RESERVED_METRICS
