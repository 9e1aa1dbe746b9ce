"""Answers a second and their waiting time, and what limits them.

`python -m tests.bench.service [SECONDS]` serves a run of 64 features, 10 classes and 16 sampled
heads over loopback, ledger on disk, to 16 connections; beside it, alternating in the same run, what
a plain batching model server does (the same application, batches and heads, nothing private) and
the bare framework (no model either). Then each limit by itself, for groups of 16 as the batches
are.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from clients.service import PrivateAnswer, PrivateAnswerer, Query, ServedModel, load_served
from clients.service.app import Service
from clients.service.charged_answers import DrawnAnswers, write_bodies
from fedcel.privacy import LabelOnly, build_mechanism
from fedcel.privacy.ledger import MICRO, Charge, Ledger, Refusal
from fedcel.runs import calibrate_answers
from fedcel.runs.run_folder import Run
from tests.clients.serving import Running, made_run, running

CONNECTIONS, GROUP, ROUNDS = 16, 16, 2
BODY = b'{"unit": "logits", "label": 0, "values": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]}'


def main() -> None:
    """Measure and print the tables."""
    torch.set_num_threads(1)
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    print("| what | answers/s | median ms | p99 ms |\n|---|---|---|---|")
    with ExitStack() as stack:
        folders = [
            Path(stack.enter_context(tempfile.TemporaryDirectory(dir=Path.cwd()))) for _ in range(4)
        ]
        runs = [sixteen_heads(m) for m in ("discrete-laplace", "laplace", "laplace", "laplace")]
        names = ["service", "service, OpenDP's noise", "batching model server", "bare framework"]
        ups = [
            stack.enter_context(running(folder, run, epsilon=1e9))
            for folder, run in zip(folders, runs, strict=True)
        ]
        unguarded(ups[2].service)
        empty(ups[3].service)
        for _ in range(ROUNDS):
            for name, up in zip(names, ups, strict=True):
                row(name, up, seconds)
        print("\n| limit | us an answer |\n|---|---|")
        for name, took in limits(folders[0]):
            print(f"| {name} | {1e6 * took:.0f} |")


def sixteen_heads(mechanism: str) -> Run:
    """Return a run of 64 features and 16 samples."""
    changes = {"net.features": 64, "net.width": 128, "privacy.mechanism": mechanism}
    return made_run(samples=16, **changes)


def empty(service: Service) -> None:
    """Leave of a service only the framework: questions are answered with a constant."""

    def work(asks: Sequence[Query]) -> list[PrivateAnswer | Refusal]:
        return [PrivateAnswer(BODY, is_fresh=True, remaining=0, spent=0) for _ in asks]

    service.batcher.work = work


def unguarded(service: Service) -> None:
    """Leave of a service what a plain batching model server does: heads and JSON for a batch."""
    model = service.model

    def work(asks: Sequence[Query]) -> list[PrivateAnswer | Refusal]:
        rows = torch.stack(
            [torch.frombuffer(bytearray(a.message), dtype=torch.float32) for a in asks]
        )
        bodies = write_bodies(DrawnAnswers(model.predict(rows).logits, {}), "logits")
        return [PrivateAnswer(body, is_fresh=True, remaining=0, spent=0) for body in bodies]

    service.batcher.work = work


def row(name: str, up: Running, seconds: float) -> None:
    """Ask for some seconds and print a line."""
    found = sorted(asked(up.url, up.key, up.model, CONNECTIONS, seconds))
    middle, last = statistics.median(found), found[int(0.99 * len(found))]
    rate = len(found) / seconds
    print(f"| {name} | {rate:.0f} | {1e3 * middle:.1f} | {1e3 * last:.1f} |", flush=True)


def asked(url: str, key: str, model: ServedModel, connections: int, seconds: float) -> list[float]:
    """Ask without a pause, from another process; return the waiting times in seconds."""
    host, port = url.removeprefix("http://").split(":")
    asking = [host, port, key, model.version, model.net.features, connections, seconds]
    command = [sys.executable, str(Path(__file__).with_name("load.py")), *map(str, asking)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    times: list[float] = json.loads(done.stdout)
    return times


def limits(folder: Path) -> list[tuple[str, float]]:
    """Return the seconds an answer of each part by itself, in groups of 16."""
    run = sixteen_heads("laplace")
    model = load_served(run)
    noise = build_mechanism(run.settings.privacy, model.classes)
    own = build_mechanism(sixteen_heads("discrete-laplace").settings.privacy, model.classes)
    labels = LabelOnly(4.0, model.classes)
    reader = calibrate_answers(run, noise)
    messages = torch.rand(GROUP, 64)
    logits = model.predict(messages).logits
    with Ledger.open(folder / "alone.db") as ledger:
        ledger.grant("phone", 10**9 * MICRO)
        desk = PrivateAnswerer(model, noise, ledger, lambda *_: None)
        counter = iter(range(10**9))

        def charges() -> list[Charge]:
            names = [f"request-{next(counter)}" for _ in range(GROUP)]
            asks = [
                Query("phone", name, name.encode().ljust(256, b"\0"), wants_uncertainty=False)
                for name in names
            ]
            return [desk.build_charge(ask) for ask in asks]

        def commit() -> None:
            booked = charges()
            ledger.charge(booked)
            ledger.settle([(charge.request, BODY) for charge in booked])

        return [
            ("heads, 16 samples", per_answer(lambda: model.predict(messages))),
            ("noise of 10 values, OpenDP's sampler", per_answer(lambda: noise.answer(logits))),
            ("noise of 10 values, own sampler", per_answer(lambda: own.answer(logits))),
            ("a label", per_answer(lambda: labels.answer(logits))),
            ("probabilities of 10 values", per_answer(lambda: reader.probabilities(logits))),
            ("ledger, charge and settle", per_answer(commit)),
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
