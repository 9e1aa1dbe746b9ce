"""Output into terminals that lack signs, and into pipes that nobody reads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sims.commands.main import GROUPS
from tests.sims.small import QUICK
from tests.system.in_turn import run_in_turn
from tests.system.services import stored

ROOT = Path(__file__).parents[3]
BUFFERED = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
BUFFERED |= {"PYTHONPATH": str(ROOT)}
ASCII = {**BUFFERED, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
ASCII |= {"PYTHONCOERCECLOCALE": "0"}


def run(folder: Path, *commands: str) -> list[str]:
    """Run commands whose terminal has ASCII alone, in one process; returns what each printed."""
    words = (command.split() for command in commands)
    printed = run_in_turn(folder, *words, environment=ASCII)
    assert "\\u" not in "".join(printed) and "\\x" not in "".join(printed), printed
    return printed


def test_commands_print_to_a_terminal_of_ascii(tmp_path: Path) -> None:
    """Dashes and plus-minus become signs of ASCII; all work is done and told."""
    settings = " ".join(f"--set={key}={value}" for key, value in QUICK.items())
    simulated, audited, *others = run(
        tmp_path,
        f"simulate digits --out run {settings}",
        "audit run --data digits --attacks none",
        "attack run",
        "report run",
        "settings",
        "privacy run --epsilons 4 --clips 1",
    )
    assert "run: run" in simulated and " - " in simulated
    assert " +- " in audited and all(others)


def test_every_help_is_printed_to_a_terminal_of_ascii(tmp_path: Path) -> None:
    """Of all commands, in one process."""
    names = [name for group in GROUPS.values() for name in group] + ["ledger"]
    assert all(run(tmp_path, *(f"{name} --help" for name in names)))


@pytest.mark.parametrize(
    "words",
    [
        ["settings"],
        ["--version"],
        ["audit", "--help"],
        pytest.param(["audit", "run", "--data=digits", "--attacks=none"], marks=pytest.mark.long),
    ],
)
def test_a_reader_that_leaves_ends_a_command_quietly(tmp_path: Path, words: list[str]) -> None:
    """Whether it leaves in the middle of much, or before little is written at the end.

    A command that works long is a process of two.
    """
    if "run" in words:
        stored(tmp_path / "run", **{"net.noise": 2.0})
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "sims", *words],
            cwd=tmp_path,
            env=BUFFERED,
            stdout=closed,
            stderr=subprocess.PIPE,
        )
    assert done.returncode == 1
    assert all(line.endswith(b" so far") for line in done.stderr.splitlines()), done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk_under_the_output_is_told(tmp_path: Path) -> None:
    """In a line, exit 2."""
    words = [sys.executable, "-m", "sims", "--version"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, cwd=ROOT, env=BUFFERED)
    assert done.returncode == 2
    assert done.stderr.decode().startswith("fedcel: cannot read or write No space left on device")
    assert len(done.stderr.splitlines()) == 1
