"""A run on disk, and a service of it as a process of its own."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from clients.service import ServedModel, load_served
from fedcel.files import write_tensors
from fedcel.runs import run_folder
from sims.commands import ledger as operator
from tests.clients.serving import ForkedProcess, fork_service, made_run

ROOT = Path(__file__).parents[2]


class Process(NamedTuple):
    """A service that runs."""

    process: "subprocess.Popen[bytes] | ForkedProcess"
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
    words = [run, "--ledger", ledger, "--port", "0", "--rate-limit", "1e6", "--allow-chance", *more]
    log = ledger.with_name(f"log-{time.monotonic_ns()}.jsonl")
    command = [sys.executable, "-m", "sims", "serve", *map(str, words)]
    with log.open("w") as file:
        process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file)
    with ready(process, log) as service:
        yield service


@contextmanager
def serving_forked(
    log: Path, *words: object, environment: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Process]:
    """Start a service with all modules loaded already, seconds sooner than an interpreter does."""
    log.touch()
    with ready(fork_service(words, log, environment), log) as service:
        yield service


@contextmanager
def ready(process: Any, log: Path) -> Iterator[Process]:
    """Wait until a service says where it is; kill it in the end if it still runs."""
    try:
        limit = time.monotonic() + 120
        while not (said := re.findall(r"^serving .* (\S+)$", log.read_text(), re.MULTILINE)):
            assert process.poll() is None and time.monotonic() < limit, log.read_text()
            time.sleep(0.02)
        yield Process(process, said[0], log)
    finally:
        process.kill()
        process.wait()
