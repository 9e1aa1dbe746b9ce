"""Time of each change on the playground: `python -m tests.bench.play` prints a table.

Two encoders side by side, one thread. Images, parameters and noise are drawn; the networks, numbers
of images and of features are those of the packaged scenarios. A change is all that the server does
between question and answer: encode, send, rebuild, guess, measure the bits, answer, write JSON.
Processor time: of another process on the same core it is free.
"""

import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from fedcel.data import Images
from fedcel.settings import DataSettings
from sims.play import FACTORS, Playground, prepare_column
from sims.play.attackers import Background
from sims.play.column import Look
from sims.play.playground import Request
from sims.play.private_account import PrivateAccount
from tests.clients.serving import made_run

AIM = 200  # milliseconds
REPEATS = 15
COMMON = {"data.train": 80, "data.validation": 80, "data.auxiliary": 100}
SIZES: dict[str, tuple[tuple[int, int], dict[str, object]]] = {
    "8x8, 400 candidates, dense": (
        (1, 8),
        {"data.test": 400, "net.width": 256, "net.features": 64},
    ),
    "28x28, 1000 candidates, dense": (
        (1, 28),
        {"data.test": 1000, "net.width": 256, "net.features": 64},
    ),
    "32x32 in colour, 1000 candidates, convolutions": (
        (3, 32),
        {"data.test": 1000, "net.name": "strided", "net.features": 64},
    ),
}
NOISES: dict[str, dict[str, object]] = {
    "noise": {},
    "noise of each image": {"net.noise-shape": "image"},
    "dropout": {"defence.name": "dropout", "defence.strength": 0.4},
}


def main() -> None:
    """Print a row for each kind of change."""
    torch.set_num_threads(1)
    print(f"| images | cut | change | ms | longest, aim {AIM} |\n|---|---|---|---|---|")
    for size, (shape, settings) in SIZES.items():
        for noise, cut in NOISES.items():
            with open_drawn(shape, {**COMMON, **settings, **cut}) as playground:
                for change, work in list_changes(playground):
                    times = [measure(work) for _ in range(REPEATS)]
                    print(
                        f"| {size} | {noise} | {change} | {statistics.median(times):.0f} | "
                        f"{max(times):.0f} |",
                        flush=True,
                    )


@contextmanager
def open_drawn(shape: tuple[int, int], settings: dict[str, object]) -> Iterator[Playground]:
    """Yield a playground of two random networks, its attackers taught with few images."""
    source = "tests.bench.play:images_{}_{}".format(*shape)
    with TemporaryDirectory() as place:
        columns, accounts, background = [], [], Background()
        for number in range(2):
            run = made_run(**settings, **{"data.source": source, "seed": number})
            look = Look(f"encoder {number}", "#000", "●")
            columns.append(prepare_column(run, look, background))
            ledgers = Path(place) / str(number)
            ledgers.mkdir()
            accounts.append(PrivateAccount(run, ledgers))
            columns[-1].attackers.wait()
        playground = Playground("drawn", tuple(columns), tuple(accounts), background)
        try:
            yield playground
        finally:
            playground.close()


def list_changes(playground: Playground) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield each kind of change, each call of it another one that nobody asked before."""
    numbers = itertools.count()
    drawn = torch.rand(playground.shape, generator=torch.Generator().manual_seed(1)).tolist()

    def look(**question: object) -> object:
        return playground.look(Request.model_validate({"seed": next(numbers), **question}))

    yield "another test image", lambda: look(test=next(numbers) % 100)
    yield "a stroke", lambda: look(pixels=drawn)
    yield "the noise", lambda: look(test=0, factor=FACTORS[next(numbers) % len(FACTORS)])
    yield "64 messages", lambda: look(test=0, messages=64)
    yield (
        "a private answer",
        lambda: playground.ask(Request(test=0, seed=next(numbers), epsilon=0.25)),
    )


def measure(work: Callable[[], object]) -> float:
    """Return the milliseconds of processor that a change takes, its JSON included."""
    begin = time.process_time()
    json.dumps(work())
    return 1000 * (time.process_time() - begin)


def draw_images(channels: int, side: int) -> tuple[Images, None]:
    """Draw as many images as the largest size needs, of ten classes."""
    stream = torch.Generator().manual_seed(0)
    count = 1500
    x = torch.rand(count, channels, side, side, generator=stream)
    return Images(x, torch.arange(count) % 10), None


def images_1_8(data: DataSettings) -> tuple[Images, None]:
    """Return grey images as small as the digits."""
    return draw_images(1, 8)


def images_1_28(data: DataSettings) -> tuple[Images, None]:
    """Return grey images of Fashion-MNIST's size."""
    return draw_images(1, 28)


def images_3_32(data: DataSettings) -> tuple[Images, None]:
    """Return colour images of CIFAR's size."""
    return draw_images(3, 32)


if __name__ == "__main__":
    main()
