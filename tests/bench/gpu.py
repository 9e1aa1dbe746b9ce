"""A GPU beside the processor: `python -m tests.bench.gpu` measures what either takes, in wall time.

It needs a GPU that PyTorch sees, and prints a line of JSON for each case and place: a round of
clients, one after the other and at once, and the training of decoders. Each place computes the
same work, in turn; `times-as-fast` is taken turn by turn against the first place, one thread of
the processor.
"""

import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple
from unittest.mock import patch

import torch

from fedcel import run_parts
from fedcel.attacks import decoder
from fedcel.attacks.attack import Attacker
from fedcel.attacks.decoder import CONVOLUTION_PACE, train_inverter
from fedcel.data import Images
from fedcel.leakage import SmashedData
from fedcel.nets import CPU, SplitNet
from fedcel.run_parts import build_client_nets, build_workspace_net
from fedcel.settings import Settings
from tests.bench.batched import EACH, Work, at_once, configure, draw_images, one_by_one

TURNS = 3
GPU = torch.device("cuda")
LOSSES = ("none", "cluster", "gated", "mutual-information")
DECODER_EPOCHS = 2
DECODER_IMAGES = 2000  # a fifth of them held out
SMALL, GREY, COLOUR = (f"tests.bench.gpu:{name}_images" for name in ("small", "grey", "colour"))


class Place(NamedTuple):
    """Where work is done, and how."""

    is_at_once: bool
    device: torch.device
    threads: int = 1

    def __str__(self) -> str:
        """Say it in words."""
        threads = f", {self.threads} threads" if self.threads > 1 else ""
        return f"{'GPU' if self.device == GPU else 'processor'}{threads}"


class Case(NamedTuple):
    """Work, and the places to compare it in."""

    what: str
    loss: str
    clients: int
    build: Callable[[Place], Work]
    places: tuple[Place, ...]


def main() -> None:
    """Measure every case and print its rows."""
    if not torch.cuda.is_available():
        sys.exit("PyTorch sees no GPU here")
    for case in (*list_rounds(), *list_decoders()):
        for row in measure(case):
            print(json.dumps(row), flush=True)


def list_rounds() -> Iterator[Case]:
    """Yield rounds of clients: many with a small dense net, few with convolutions."""
    all_cores = torch.get_num_threads()
    places = tuple(
        Place(True, device, threads) for device, threads in ((CPU, 1), (CPU, all_cores), (GPU, 1))
    )
    for clients, losses in ((100, LOSSES), (1000, ("none", "gated"))):
        for loss in losses:
            settings = configure(clients, loss, **{"data.source": SMALL})
            yield make_round("MLP, 8x8", settings, places)
    places = (
        *(Place(False, CPU), Place(False, CPU, all_cores)),
        *(Place(False, GPU), Place(True, GPU)),
    )
    for clients, losses in ((4, LOSSES), (32, ("none", "mutual-information"))):
        for loss in losses:
            settings = configure(clients, loss, **{"data.source": GREY, "net.name": "strided"})
            yield make_round("strided, 28x28", settings, places)
    large = {"data.source": COLOUR, "net.name": "vgg11", "net.features": 4096, "local.steps": 2}
    for loss in ("none", "gated"):
        yield make_round("VGG11, 3x32x32", configure(4, loss, **large), places)


def make_round(what: str, settings: Settings, places: tuple[Place, ...]) -> Case:
    """Return a round of these settings."""

    def build(place: Place) -> Work:
        return at_once(settings) if place.is_at_once else one_by_one(settings)

    parameters = len(build_workspace_net(settings).vector)
    name = f"{what}, {parameters} parameters"
    return Case(name, settings.cel.kind, settings.clients, build, places)


def list_decoders() -> Iterator[Case]:
    """Yield the training of decoders."""
    places = (Place(False, CPU), Place(False, CPU, torch.get_num_threads()), Place(False, GPU))
    for what, source in (("28x28", GREY), ("3x32x32", COLOUR)):
        settings = configure(4, "none", **{"data.source": source, "net.name": "strided"})
        images, _ = grey_images(None) if source == GREY else colour_images(None)
        own = Images(images.x[:DECODER_IMAGES], images.y[:DECODER_IMAGES])
        work = partial(train_decoder, build_workspace_net(settings).net, own)
        name = f"decoder of {what}, {DECODER_EPOCHS} epochs of 1 600 images"
        yield Case(name, "", 0, partial(leave_place, work), places)


def leave_place(work: Work, place: Place) -> Work:
    """Return the work itself: `stay_at` says where it is done."""
    return work


def train_decoder(net: SplitNet, images: Images) -> None:
    """Train a decoder for some epochs."""
    budget = DECODER_EPOCHS / CONVOLUTION_PACE.epochs
    train_inverter(Attacker(SmashedData(net), images, budget, torch.Generator().manual_seed(0)))


def measure(case: Case) -> Iterator[dict[str, object]]:
    """Yield a row for each place of a case."""
    times: dict[Place, list[float]] = {place: [] for place in case.places}
    works: dict[Place, Work] = {}
    for place in case.places:
        with stay_at(place):
            works[place] = case.build(place)
            seconds(works[place])
    for _ in range(TURNS):
        for place, work in works.items():
            with stay_at(place):
                times[place].append(seconds(work))
    first = times[case.places[0]]
    for place, taken in times.items():
        ratios = [a / b for a, b in zip(first, taken, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        yield {
            "what": case.what,
            "loss": case.loss,
            "clients": case.clients,
            "at-once": place.is_at_once,
            "place": str(place),
            "milliseconds": round(1000 * statistics.median(taken), 1),
            "times-as-fast": round(middle, 2),
            "low": round(low, 2),
            "high": round(high, 2),
            "command": "python -m tests.bench.gpu",
            "machine": f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, "
            f"Python {platform.python_version()}",
        }


@contextmanager
def stay_at(place: Place) -> Iterator[None]:
    """Compute at a place, whatever the net."""
    before = torch.get_num_threads()
    torch.set_num_threads(place.threads)
    build_client_nets.cache_clear()
    with ExitStack() as stack:
        for module in (run_parts, decoder):
            stack.enter_context(patch.object(module, "fastest_device", lambda net: place.device))
        yield
    torch.set_num_threads(before)


def seconds(work: Work) -> float:
    """Return the wall time of one call; what it returns is on the processor, so it has ended."""
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def small_images(data: object) -> tuple[Images, None]:
    """Return random 8x8 images for 1 000 clients."""
    return draw_images(EACH * 1000 + 300, 8), None


def grey_images(data: object) -> tuple[Images, None]:
    """Return random 28x28 images for 32 clients."""
    return draw_images(EACH * 32 + 300, 28), None


def colour_images(data: object) -> tuple[Images, None]:
    """Return random colour images of 32x32."""
    grey = draw_images(3 * 2300, 32)
    return Images(grey.x.view(-1, 3, 32, 32), grey.y[:2300]), None


if __name__ == "__main__":
    main()
