"""Output into terminals that lack signs, and into pipes that nobody reads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sims.commands.main import GROUPS
from tests.sims.small import QUICK
from tests.system.services import stored

ROOT = Path(__file__).parents[3]
BUFFERED = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
BUFFERED |= {"PYTHONPATH": str(ROOT)}
ASCII = {**BUFFERED, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
ASCII |= {"PYTHONCOERCECLOCALE": "0"}
COMMANDS = [[name] for group in GROUPS.values() for name in group] + [["ledger"]]
HELP = f"""
from sims.commands.main import main
for words in {COMMANDS!r}:
    assert main([*words, "--help"]) == 0, words
"""


def run(folder: Path, *words: str) -> bytes:
    """Run a command whose terminal has ASCII alone; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "sims", *words], cwd=folder, env=ASCII, capture_output=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert b"\\u" not in done.stdout and b"\\x" not in done.stdout, done.stdout
    return done.stdout


def test_commands_print_to_a_terminal_of_ascii(tmp_path: Path) -> None:
    """Dashes and plus-minus become signs of ASCII; all work is done and told."""
    settings = [f"--set={key}={value}" for key, value in QUICK.items()]
    shown = run(tmp_path, "simulate", "digits", "--out", "run", *settings)
    assert b"run: run" in shown and b" - " in shown
    shown = run(tmp_path, "audit", "run", "--data", "digits", "--attacks", "none")
    assert b" +- " in shown
    for words in (
        ["attack", "run"],
        ["report", "run"],
        ["settings"],
        ["privacy", "run", "--epsilons", "4", "--clips", "1"],
    ):
        assert run(tmp_path, *words)


def test_every_help_is_printed_to_a_terminal_of_ascii(tmp_path: Path) -> None:
    """Of all commands, in one process."""
    done = subprocess.run(
        [sys.executable, "-c", HELP], cwd=tmp_path, env=ASCII, capture_output=True
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("words", [["settings"], ["audit", "run", "--data", "digits"]])
def test_a_reader_that_leaves_ends_a_command_quietly(tmp_path: Path, words: list[str]) -> None:
    """Whether it leaves in the middle of much, or before little is written at the end."""
    stored(tmp_path / "run", **{"net.noise": 2.0})
    reader, writer = os.pipe()
    os.close(reader)
    more = ["--attacks", "none"] if words[0] == "audit" else []
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "sims", *words, *more],
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
