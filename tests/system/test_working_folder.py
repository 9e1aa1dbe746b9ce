"""A working folder whose modules have the names of fedcel's, and of what fedcel is made of.

The terminal has ASCII alone: dashes and plus-minus must become signs of ASCII.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sims.commands.main import GROUPS
from tests.sims.small import QUICK
from tests.system.federation import find_port
from tests.system.in_turn import run_in_turn
from tests.system.services import stored

ROOT = Path(__file__).parents[2]
NAMES = ("clients", "strategies", "fedcel", "torch", "json", "typer", "logging")
SETTINGS = [f"--set={key}={value}" for key, value in QUICK.items()]
COMMAND = str(Path(sys.executable).with_name("fedcel"))
ASCII = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
ENVIRONMENT = {**os.environ, **ASCII, "PYTHONPATH": str(ROOT)}
LOCAL = ["--engine", "local", *SETTINGS]
BENCH = """
title = "Of a cell that is trained in a process"
[[variant]]
name = "own"
settings = { cel = { kind = "ownpart:Own" } }
"""
OWN_PART = """
from fedcel.losses.cel import PlainCEL, Term
from fedcel.losses import ClientLoss

class Own(ClientLoss):
    def __init__(self, *arguments):
        self.plain = PlainCEL(classes=10, penalty="linear")

    def loss(self, state, batch, measure=True):
        return Term(self.plain(batch.z, batch.y), {})
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Modules and packages that end whoever imports them, and a part of a user's own."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} of the working folder')")
    for name in ("sims", "fedcel"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise SystemExit('{name}/')")
    (tmp_path / "ownpart.py").write_text(OWN_PART)
    (tmp_path / "own.toml").write_text(BENCH)
    return tmp_path


def run(folder: Path, *words: str) -> str:
    """Run a command in the folder; its folder for modules comes first, if it has one."""
    done = subprocess.run(
        words, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
    return done.stdout


def run_all(folder: Path, *commands: list[str]) -> list[str]:
    """Run commands in one process; returns what each printed, which has no escaped signs."""
    printed = run_in_turn(folder, *commands, environment=ENVIRONMENT)
    assert "\\u" not in "".join(printed) and "\\x" not in "".join(printed), printed
    assert all(printed)
    return printed


def test_every_command_finds_its_own_modules(folder: Path) -> None:
    """Of all commands the help, as each loads it."""
    names = [name for group in GROUPS.values() for name in group] + ["ledger"]
    run_all(folder, *([name, "--help"] for name in names))


def test_a_run_is_trained_attacked_reported_and_a_service_answers(folder: Path) -> None:
    """In a process of a bench; then all that work on a run, and a service.

    The service's process of the ledger is another interpreter. `python -m sims` puts the working
    folder in front, and fedcel behind.
    """
    stored(folder / "served", **{"net.noise": 2.0})
    bench = ["bench", "own.toml", "--jobs", "2", "--out", "bench", *LOCAL, "--set=bench.seeds=0"]
    cell = "bench/runs/own-0"
    benched, audited, *_, served = run_all(
        folder,
        bench,
        ["audit", cell, "--data=digits", "--images=60", "--attacks=none", "--out=audit"],
        ["attack", cell, "--set", "attack.names=kernel-ridge"],
        ["settings"],
        ["serve", "served", "--allow-chance", "--port", str(find_port())],
    )
    assert " - " in benched and " +- " in audited and "\nserving " in served
    assert json.loads((folder / "audit" / "audit.json").read_text())["leak"]
    assert len(json.loads((folder / "bench" / "bench.json").read_text())) == 1
    assert 'kind = "ownpart:Own"' in (folder / cell / "settings.toml").read_text()
    (folder / "sims").rename(folder / "later")  # which Python itself would run
    assert run(folder, sys.executable, "-m", "sims", "--version").startswith("fedcel ")


@pytest.mark.long
def test_processes_of_ray_train(folder: Path) -> None:
    """Ray puts the working folder in front of what its processes look for modules in."""
    words = ["--engine", "ray", *SETTINGS, "--set", "cel.kind=ownpart:Own"]
    run(folder, COMMAND, "simulate", "digits", "--out", "run", *words)
    assert '"rejected": [{' not in (folder / "run" / "events.jsonl").read_text()
