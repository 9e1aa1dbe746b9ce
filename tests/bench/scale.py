"""Time and memory against clients, parameters and samples: `python -m tests.bench.scale`.

Each point is a process of its own on the engine `local`, one client after the other, 100 clients a
round, `cluster` CEL, whose state a client keeps; images are random numbers, a load and not a task.
With `--ray` also 1 000 to 10 000 virtual SuperNodes, with `--million` a million clients, at once as
many as `local.at-once` auto takes. Printed: seconds and seconds of processor time up to the end of
round 1, seconds a round (median of those after the first two), the process's peak memory, what lies
on the disk.
"""

import json
import resource
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch

from fedcel.data import Images
from fedcel.runs import run_folder
from fedcel.settings import parse_settings
from sims.engines.simulate import train_on_engine

IMAGES = 21_000
BASE: dict[str, str | int | float] = {
    "data.source": "tests.bench.scale:images",
    "data.partition": "iid",
    "data.validation": 200,
    "data.auxiliary": 100,
    "data.test": 200,
    "clients": 1000,
    "clients-per-round": 100,
    "rounds": 12,
    "local.steps": 10,
    "cel.kind": "cluster",
    "cel.warm-up": 0,
    "cel.ramp": 0.1,
    "chain.burn-in": 0.5,
    "chain.thin": 1,
    "chain.scope": "full",
}
POINTS: list[tuple[str, dict[str, str | int | float]]] = [
    *((f"{n} clients", {"clients": n}) for n in (100, 1000, 10_000)),
    *((f"net.width {w}", {"net.width": w}) for w in (1024, 8192)),
    *((f"{n} samples kept", {"chain.samples": n, "rounds": 2 * n + 4}) for n in (8, 16)),
]
RAY: list[tuple[str, dict[str, str | int | float]]] = [
    ("1 000 virtual SuperNodes on Ray", {"engine": "ray", "rounds": 6}),
    *(
        (
            f"{n} virtual SuperNodes on Ray, 4 a round",
            {"engine": "ray", "rounds": 6, "clients": n, "clients-per-round": 4},
        )
        for n in (3000, 10_000)
    ),
]
MILLION: list[tuple[str, dict[str, str | int | float]]] = [
    (
        "1 000 000 clients",
        {
            "local.at-once": "auto",
            "clients": 1_000_000,
            "rounds": 6,
            "data.source": "tests.bench.scale:many_images",
            "chain.scope": "head",
        },
    )
]
COLUMNS = (
    "parameters",
    "to the end of round 1, s",
    "of processor time, s",
    "a round, s",
    "peak memory, MiB",
    "on disk, MiB",
)


def main() -> None:
    """Measure every point in a process of its own, and print the table."""
    print("| what | " + " | ".join(COLUMNS) + " |\n|" + "---|" * (len(COLUMNS) + 1))
    points = MILLION if "--million" in sys.argv else POINTS
    for title, change in [*points, *RAY] if "--ray" in sys.argv else points:
        command = [sys.executable, "-m", "tests.bench.scale", "--one", json.dumps(change)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        figures = json.loads(done.stdout.splitlines()[-1])
        print(f"| {title} | " + " | ".join(f"{value:,.3g}" for value in figures) + " |", flush=True)


def one(change: dict[str, str | int | float]) -> list[float]:
    """Return the figures of one run, in the order of COLUMNS."""
    torch.set_num_threads(1)
    settings = parse_settings({"engine": "local", "local.at-once": 1, **BASE, **change})
    ends, processor = [time.perf_counter()], [time.process_time()]

    def end_round(event: object) -> None:
        ends.append(time.perf_counter())
        processor.append(time.process_time())

    with TemporaryDirectory() as place:
        folder = Path(place) / "run"
        run_folder.create_run(folder, settings)
        train_on_engine(settings, folder, end_round)
        disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        parameters = run_folder.read_run(folder).model.numel()
    rounds = [after - before for before, after in pairwise(ends[1:])]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    first = ends[1] - ends[0]
    used = processor[1] - processor[0]
    return [parameters, first, used, median(rounds[1:]), peak / 1024, disk / 2**20]


def images(data: object, count: int = IMAGES) -> tuple[Images, None]:
    """Return random 8x8 images with labels."""
    stream = torch.Generator().manual_seed(0)
    x = torch.rand(count, 1, 8, 8, generator=stream)
    return Images(x, torch.randint(0, 10, (count,), generator=stream)), None


def many_images(data: object) -> tuple[Images, None]:
    """Return two random images for each of a million clients."""
    return images(data, 2_001_000)


if __name__ == "__main__":
    if "--one" in sys.argv:
        print(json.dumps(one(json.loads(sys.argv[-1]))))
    else:
        main()
