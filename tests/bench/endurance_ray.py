"""Clients' processes that are killed again and again, over a long time.

`python -m tests.bench.endurance_ray [ROUNDS] [SECONDS]` trains digits on Ray for so many rounds and
kills one of Ray's processes of clients every so many seconds (3 000 rounds, 120 s: an hour of two
cores), but not before a round has ended since the last: a client that is killed three times is left
out. Beside it one process trains the same undisturbed. Printed: a line at every kill with the
round, clients that were left out so far, own memory of the process that trains; at the end
whether rounds and models have the same bits. The exit code says it, too.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench.endurance import read_memory

DEFAULTS = ["3000", "120"]
PROCESSES = ("ray::ClientApp", "ray::IDLE")
"""What Ray calls the processes of clients, at work and between two."""


def main() -> None:
    """Train twice, kill, compare."""
    rounds, pause = (int(word) for word in (sys.argv[1:] + DEFAULTS[len(sys.argv) - 1 :])[:2])
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as place:
        disturbed, calm = Path(place) / "ray", Path(place) / "local"
        running, undisturbed = (
            start(folder, engine, rounds)
            for folder, engine in ((disturbed, "ray"), (calm, "local"))
        )
        print("| minute | round | left out so far | memory MiB | killed |\n|---|---|---|---|---|")
        begin, kills, last = time.monotonic(), 0, -1
        while is_running(running, pause):
            ended = len(read_rounds(disturbed))
            victim = find_worker(running.pid) if ended > last else None
            if victim:
                last = ended
                os.kill(victim, signal.SIGKILL)
                kills += 1
            minute = (time.monotonic() - begin) / 60
            row = describe(disturbed, running.pid)
            print(f"| {minute:.0f} | {row} | {victim or 'nobody'} |", flush=True)
        print(f"exit {running.returncode} after {kills} kills", flush=True)
        undisturbed.wait()
        files = [folder / "model.safetensors" for folder in (disturbed, calm)]
        same = all(path.exists() for path in files) and (
            files[0].read_bytes() == files[1].read_bytes()
            and read_rounds(disturbed) == read_rounds(calm)
        )
        print(f"left out: {count_left_out(disturbed)}; same bits: {same}")
    sys.exit(not same or running.returncode)


def start(folder: Path, engine: str, rounds: int) -> subprocess.Popen[bytes]:
    """Start a training of longer rounds than the demo's."""
    words = [sys.executable, "-m", "sims", "simulate", "digits", "--variant", "cluster"]
    steps = ["--set", f"rounds={rounds}", "--set", "local.steps=100"]
    steps += ["--set", "local.at-once=1"]  # to the bit as on Ray
    with folder.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(
            [*words, *steps, "--engine", engine, "--out", str(folder)], stdout=log, stderr=log
        )


def is_running(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait a while; say whether the process is still there."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def find_worker(ancestor: int) -> int | None:
    """Return a client's process below this one, at work if there is such a one."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            title = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:  # it has ended
            continue
        if title.startswith(PROCESSES) and is_below(int(entry.name), ancestor):
            found.append((title.startswith(PROCESSES[1]), int(entry.name)))
    return min(found)[1] if found else None


def is_below(process: int, ancestor: int) -> bool:
    """Say whether a process descends from another."""
    while process > 1 and process != ancestor:
        try:
            status = Path(f"/proc/{process}/status").read_text()
        except OSError:
            return False
        process = int(status.split("PPid:")[1].split()[0])
    return process == ancestor


def read_rounds(folder: Path) -> list[dict[str, Any]]:
    """Return the rounds that are complete, without their times."""
    path = folder / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def count_left_out(folder: Path) -> int:
    """Return how many clients were left out of rounds so far."""
    return sum(len(event["rejected"]) for event in read_rounds(folder))


def describe(folder: Path, process: int) -> str:
    """Return the round, who was left out, the memory, as cells of a table."""
    trains = read_trainer(folder, process)
    return f"{len(read_rounds(folder))} | {count_left_out(folder)} | {read_memory(trains):.0f}"


def read_trainer(folder: Path, process: int) -> int:
    """Return the process that trains; the command's first one, which waits for it, at the end."""
    try:
        return int(json.loads((folder / ".lock").read_text())["pid"])
    except (OSError, ValueError):
        return process


if __name__ == "__main__":
    main()
