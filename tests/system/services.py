"""A run on disk, and a service of it as a process of its own."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from clients.service import ServedModel, load_served
from fedcel.files import write_tensors
from fedcel.runs import run_folder
from sims.commands import ledger as operator
from tests.clients.serving import made_run

ROOT = Path(__file__).parents[2]


class Process(NamedTuple):
    """A service that runs."""

    process: "subprocess.Popen[str]"
    url: str
    log: Path


def stored(path: Path, samples: int = 3, **changes: object) -> ServedModel:
    """Write a run to disk, without training; return what it serves."""
    made = made_run(samples, **changes)
    run_folder.create_run(path, made.settings)
    write_tensors(path / "model.safetensors", {"model": made.model})
    for number, sample in enumerate(made.samples):
        run_folder.open_chain(path, made.settings).write_sample(number, sample)
    return load_served(run_folder.read_run(path))


def new_key(ledger: Path, epsilon: float = 1e6) -> str:
    """Make the client `phone` and its key, as `fedcel ledger keys` does."""
    said = operator.issue_key(ledger, "phone", None, epsilon)
    return re.findall(r"key: (\S+)", said)[0]


@contextmanager
def serving(run: Path, ledger: Path, *more: object) -> Iterator[Process]:
    """Start a service on a free port; kill it in the end if it still runs."""
    command = [sys.executable, "-m", "sims", "serve", run, "--ledger", ledger, "--port", "0"]
    log = ledger.with_name(f"log-{time.monotonic_ns()}.jsonl")
    with log.open("w") as errors:
        process = subprocess.Popen(
            [*map(str, command), *map(str, more), "--rate-limit", "1e6", "--allow-chance"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        assert process.stdout
        lines = [process.stdout.readline() for _ in range(3)]  # what answers are worth comes first
        said = lines[-1]
        assert said.startswith("serving "), log.read_text()
        yield Process(process, said.split()[-1], log)
    finally:
        process.kill()
        process.communicate()
