"""Output into pipes that nobody reads and onto full disks."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.services import stored

ROOT = Path(__file__).parents[3]
BUFFERED = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
BUFFERED |= {"PYTHONPATH": str(ROOT)}


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
    progress = re.compile(rb".*(\d s so far|about \d+ s left)")
    assert all(map(progress.fullmatch, done.stderr.splitlines())), done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk_under_the_output_is_told(tmp_path: Path) -> None:
    """In a line, exit 2."""
    words = [sys.executable, "-m", "sims", "--version"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, cwd=ROOT, env=BUFFERED)
    assert done.returncode == 2
    assert done.stderr.decode().startswith("fedcel: cannot read or write No space left on device")
    assert len(done.stderr.splitlines()) == 1
