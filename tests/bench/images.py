"""Images of real size: `python -m tests.bench.images` prints a table.

Drawn images: 60 000 of 32 pixels are loaded by processes of their own, the first of which decodes
them; augmented; and split nets of torchvision are audited at 224 pixels and trained at 32.
Processor seconds, and the largest memory of the process.
"""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from fedcel.data import augment_images
from fedcel.settings import parse_settings
from sims.engines.simulate import simulate
from tests.fedcel.seeded import seeded

IMAGES, TAKEN, AUDITED, TRAINED = 60_000, 5_000, 50, 2000
REPEATS = 20
LOAD = """
import sys
from fedcel.data import load_splits
from fedcel.settings import parse_settings
from tests.bench.images import used
begin = used()
raw = {"data.source": "npz", "data.path": sys.argv[1], "data.train": int(sys.argv[2])}
load_splits(parse_settings(raw).data, 4, 0)
print(used()[0] - begin[0], used()[1] - begin[1])
"""
AUDIT = """
import sys
from sims.commands.main import main
from tests.bench.images import used
begin = used()
main(["audit", "torchvision:mobilenet_v3_small", "--at", "features.3", "--data", sys.argv[1],
      "--noise", "0.5sd", "--attacks", "none", "--out", sys.argv[2]])
print(used()[0] - begin[0], used()[1])
"""


def used() -> tuple[float, float]:
    """Return the processor seconds and the most gigabytes that this process has used."""
    return time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main() -> None:
    """Print a row for each measure."""
    torch.set_num_threads(1)
    print("| what | processor s | GB |\n|---|---|---|")
    with TemporaryDirectory() as folder:
        place = Path(folder)
        os.environ["FEDCEL_CACHE"] = str(place / "cache")
        small, large = place / "small.npz", place / "large.npz"
        write_images(small, IMAGES, 32)
        write_images(large, AUDITED, 224)
        for turn in ("first", "second"):
            name = f"{turn} load of {IMAGES} images of 32 px, {TAKEN} taken, beyond the libraries"
            row(name, *run_apart(LOAD, small, TAKEN))
        for words in ("crop,flip", "crop,flip,cutout"):
            row(f"augmentation {words}, 128 images of 32 px", time_call(augment(words)))
        name = f"audit of {AUDITED} images of 224 px, MobileNetV3, no attacks"
        row(name, *run_apart(AUDIT, large, place / "audit"))
        training, measuring = train_and_measure(small, place / "run")
        row(f"training of a MobileNetV3, two rounds of {TRAINED} images of 32 px", training)
        row("measuring it, with 100 test images", measuring)


def row(what: str, seconds: float, gigabytes: float | None = None) -> None:
    """Print one row."""
    print(f"| {what} | {seconds:.3g} | {'' if gigabytes is None else f'{gigabytes:.2g}'} |")


def write_images(file: Path, count: int, side: int) -> None:
    """Write drawn images of ten classes, a tenth of them for tests."""
    stream = np.random.default_rng(0)
    x = stream.integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    y, train = np.arange(count) % 10, count - count // 10
    np.savez(file, x_train=x[:train], y_train=y[:train], x_test=x[train:], y_test=y[train:])


def run_apart(program: str, *words: object) -> list[float]:
    """Return the numbers in the last line that a process prints."""
    command = [sys.executable, "-c", program, *map(str, words)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    return [float(number) for number in ended.stdout.splitlines()[-1].split()]


def augment(words: str) -> Callable[[], object]:
    """Return the augmentation of one batch."""
    x, stream = torch.rand(128, 3, 32, 32), seeded(0)
    return lambda: augment_images(x, words, stream)


def time_call(work: Callable[[], object]) -> float:
    """Return the mean processor seconds of a call."""
    work()
    begin = time.process_time()
    for _ in range(REPEATS):
        work()
    return (time.process_time() - begin) / REPEATS


def train_and_measure(file: Path, folder: Path) -> tuple[float, float]:
    """Return the processor seconds of a run's rounds, and of all that follows them."""
    raw = {"data.source": "npz", "data.path": str(file), "data.train": TRAINED, "data.test": 100}
    net = {"net.name": "torchvision:mobilenet_v3_small", "net.cut": "features.3"}
    cut = {"net.features": 512, "clients": 2, "rounds": 2, "temperature": 0.0, "engine": "local"}
    local = {"local.epochs": 1, "local.rate": 0.01, "local.clip": 1, "chain.burn-in": 1.0}
    times = [time.process_time()]
    settings = parse_settings({**raw, **net, **cut, **local})
    simulate(settings, folder, listen=lambda event: times.append(time.process_time()))
    return times[-1] - times[0], time.process_time() - times[-1]


if __name__ == "__main__":
    main()
