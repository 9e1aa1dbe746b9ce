"""Answers a second and their waiting time, and what limits them.

`python -m tests.bench.service [SECONDS]` serves runs of 64 features, 10 classes and 16 sampled
heads over loopback, ledger on disk, to 16 and to 128 connections. Beside them, alternating in the
same run, what a plain batching model server does (the same application, batches and heads, nothing
private), in one process or with its heads in another, as private answers are, and the bare
application (no model either). Then each limit by itself, for groups of 16.

The load comes from `wrk`, where the environment's WRK or the path has it; else from `load.py`,
which takes more of the processor.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from clients.service import PrivateAnswer, PrivateAnswerer, Query, ServedModel, load_served
from clients.service.onnx_heads import use_onnx_heads
from clients.service.service import Service
from clients.service.worker import ProcessWorker, spare_from_collections
from fedcel.privacy import LabelOnly
from fedcel.privacy.ledger import MICRO, Charge, Ledger, Refusal
from fedcel.runs import calibrate_answers
from fedcel.runs.run_folder import Run
from sims.commands.onnx_export import convert_heads
from tests.bench.plain_answers import BODY, answer_plainly
from tests.clients.serving import Running, ThreadWorker, made_run, running

CONNECTIONS, GROUP, ROUNDS = (16, 128), 16, 3
WRK = os.environ.get("WRK") or shutil.which("wrk")


class Served(NamedTuple):
    """A service under load."""

    what: str
    mechanism: str
    engine: str
    strip: Callable[[Service], None]
    """Takes out of it what it is compared without."""
    worker: Callable[[], ProcessWorker] = ProcessWorker
    """Where the answers are made."""


class Target(NamedTuple):
    """What is asked."""

    url: str
    key: str
    model: ServedModel


class Load(NamedTuple):
    """What came back."""

    rate: float
    median: float
    p99: float


def main() -> None:
    """Measure and print the tables."""
    torch.set_num_threads(1)
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(
        f"load by {WRK or 'load.py'}; processor time in us an answer, of the service, of its worker"
    )
    print("| what | connections | answers/s | median ms | p99 ms | service us | worker us |")
    print("|---|---|---|---|---|---|---|")
    with ExitStack() as stack:
        ups = {kind: stack.enter_context(serve(kind)) for kind in SERVED}
        spare_from_collections()  # as `fedcel serve` does
        for connections in CONNECTIONS:
            for _ in range(ROUNDS):
                for kind, up in ups.items():
                    target = Target(up.url, up.key, up.model)
                    before = read_processor_times(up)
                    load = put_load(target, connections, seconds)
                    spent = [
                        1e6 * (after - first) / (load.rate * seconds)
                        for first, after in zip(before, read_processor_times(up), strict=True)
                    ]
                    print(
                        f"| {kind.what} | {connections} | {load.rate:.0f} | "
                        f"{1e3 * load.median:.1f} | {1e3 * load.p99:.1f} | "
                        f"{spent[0]:.0f} | {spent[1]:.0f} |",
                        flush=True,
                    )
    print("\n| limit | us an answer |\n|---|---|")
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        for name, took in limits(Path(folder)):
            print(f"| {name} | {1e6 * took:.0f} |")


def read_processor_times(up: Running) -> tuple[float, float]:
    """Return the seconds that this process, and the worker's where it has one, have used."""
    worker = up.service.worker
    used = os.times()
    if isinstance(worker, ThreadWorker):
        return used.user + used.system, 0.0
    fields = Path(f"/proc/{worker._process.pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return used.user + used.system, ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def serve(kind: Served) -> Iterator[Running]:
    """Serve one kind, its ledger on the disk of this folder."""
    run = sixteen_heads(kind.mechanism)
    model = load_served(run)
    if kind.engine == "onnx":
        model = use_onnx_heads(model, convert_heads(model))
    with (
        tempfile.TemporaryDirectory(dir=Path.cwd()) as folder,
        running(Path(folder), run, epsilon=1e9, model=model, worker=kind.worker()) as up,
    ):
        kind.strip(up.service)
        yield up


def sixteen_heads(mechanism: str) -> Run:
    """Return a run of 64 features and 16 samples."""
    changes = {"net.features": 64, "net.width": 128, "privacy.mechanism": mechanism}
    return made_run(samples=16, **changes)


def empty(service: Service) -> None:
    """Leave of a service only the framework: questions are answered with a constant."""

    async def work(asks: Sequence[Query]) -> list[PrivateAnswer | Refusal]:
        return [PrivateAnswer(BODY, is_fresh=True, remaining=0, spent=0) for _ in asks]

    service.batcher.work = work


def unguarded(service: Service) -> None:
    """Leave of a service what a plain batching model server does: heads and JSON for a batch."""

    async def work(asks: Sequence[Query]) -> list[PrivateAnswer | Refusal]:
        return await service.worker.call(answer_plainly, asks)

    service.batcher.work = work


def keep_all(service: Service) -> None:
    """Take nothing out."""


SERVED = (
    Served("private answers, `label-only`", "label-only", "torch", keep_all),
    Served("private answers, `label-only`, heads in ONNX", "label-only", "onnx", keep_all),
    Served("private answers, `discrete-laplace`", "discrete-laplace", "torch", keep_all),
    Served(
        "private answers, `discrete-laplace`, heads in ONNX", "discrete-laplace", "onnx", keep_all
    ),
    Served("private answers, `laplace` (OpenDP)", "laplace", "torch", keep_all),
    Served(
        "private answers, `label-only`, in one process",
        "label-only",
        "torch",
        keep_all,
        ThreadWorker,
    ),
    Served(
        "a plain batching model server, nothing private",
        "laplace",
        "torch",
        unguarded,
        ThreadWorker,
    ),
    Served("the same, heads in ONNX", "laplace", "onnx", unguarded, ThreadWorker),
    Served("the same, heads in another process", "laplace", "torch", unguarded),
    Served("the same application without a model", "laplace", "torch", empty, ThreadWorker),
)


def put_load(up: Target, connections: int, seconds: int) -> Load:
    """Ask without a pause, from another process."""
    if WRK is None:
        times = sorted(ask_steadily(up.url, up.key, up.model, connections, seconds))
        return Load(len(times) / seconds, statistics.median(times), times[int(0.99 * len(times))])
    script = Path(__file__).with_name("load.lua")
    options = [
        "-t1",
        f"-c{connections}",
        f"-d{seconds}s",
        "--timeout",
        "30s",
        "--latency",
        "-s",
        str(script),
    ]
    arguments = [up.key, up.model.version, str(up.model.net.features)]
    command = [WRK, *options, f"{up.url}/v1/query", "--", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result = json.loads(re.findall(r"^RESULT (.*)", done.stdout, re.MULTILINE)[0])
    if result["refused"] or result["broken"]:
        raise RuntimeError(f"{result} of {up.url}: not all were answered")
    return Load(result["answers"] / result["seconds"], result["median"], result["p99"])


def ask_steadily(
    url: str, key: str, model: ServedModel, connections: int, seconds: float
) -> list[float]:
    """Return the waiting times in seconds, asked for by `load.py`."""
    host, port = url.removeprefix("http://").split(":")
    arguments = [host, port, key, model.version, model.net.features, connections, seconds]
    command = [sys.executable, str(Path(__file__).with_name("load.py")), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    times: list[float] = json.loads(done.stdout)
    return times


def limits(folder: Path) -> list[tuple[str, float]]:
    """Return the seconds an answer of each part by itself, in groups of 16."""
    run = sixteen_heads("laplace")
    model = load_served(run)
    noise = run.settings.privacy.build(model.classes)
    own = sixteen_heads("discrete-laplace").settings.privacy.build(model.classes)
    labels = LabelOnly(4.0, model.classes)
    onnx = use_onnx_heads(model, convert_heads(model))
    reader = calibrate_answers(run, noise)
    messages = torch.rand(GROUP, 64)
    logits = model.predict(messages).logits
    with Ledger.open(folder / "alone.db") as ledger:
        ledger.grant("phone", 10**9 * MICRO)
        answerer = PrivateAnswerer(model, noise, ledger)
        counter = iter(range(10**9))

        def charges() -> list[Charge]:
            names = [f"request-{next(counter)}" for _ in range(GROUP)]
            asks = [
                Query("phone", name, name.encode().ljust(256, b"\0"), wants_uncertainty=False)
                for name in names
            ]
            return [answerer.build_charge(ask) for ask in asks]

        def commit() -> None:
            ledger.charge(charges(), [BODY] * GROUP)

        return [
            ("heads in ONNX Runtime, 16 samples", per_answer(lambda: onnx.predict(messages))),
            ("heads in torch, 16 samples", per_answer(lambda: model.predict(messages))),
            ("noise of 10 values, OpenDP's sampler", per_answer(lambda: noise.answer(logits))),
            ("noise of 10 values, own sampler", per_answer(lambda: own.answer(logits))),
            ("a label", per_answer(lambda: labels.answer(logits))),
            ("probabilities of 10 values", per_answer(lambda: reader.probabilities(logits))),
            ("ledger, charge with answer", per_answer(commit)),
        ]


def per_answer(work: Callable[[], object]) -> float:
    """Return the median over 50 groups of a group's seconds, for one answer."""
    times = []
    for _ in range(50):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return statistics.median(times) / GROUP


if __name__ == "__main__":
    main()
