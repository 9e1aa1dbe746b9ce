"""Many clients at once beside one after the other: `python -m tests.bench.batched` prints tables.

A round of clients of 125 images each, as in the demo, 20 steps of 32, on one thread. Pairs are
timed in turn, A B A B ..., by processor time, which other work on the machine disturbs less; the
ratio is taken pair by pair and printed as median and quartiles.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from fedcel.data import Images, load_splits
from fedcel.federation import (
    ClientUpdate,
    RoundRequest,
    RoundTrainer,
    begin_round,
    finish_round,
    init_server_state,
)
from fedcel.losses.cel import State
from fedcel.run_parts import (
    build_client_parts,
    build_server_parts,
    build_workspace_net,
    count_clients_at_once,
)
from fedcel.runs import EventCallback, run_folder
from fedcel.settings import Settings, parse_settings
from sims.engines.simulate import train_on_engine
from tests.bench.ratios import bare

EACH = 125
PAIRS = 11
CLIENTS = (8, 32, 100)
BACKEND = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
KINDS = ("plain", "cluster", "gated")
Work = Callable[[], object]


def main() -> None:
    """Time every pair and print the tables."""
    torch.set_num_threads(1)
    print(
        "| a round of | against | times as fast | quartiles | ms a client |\n|---|---|---|---|---|"
    )
    for clients in CLIENTS:
        for kind in ("none", *KINDS):
            settings = configure(clients, kind)
            what = f"{clients} clients at once, CEL {kind}"
            if kind == "none":
                line(what, "bare in-place loop", at_once(settings), bare(settings), clients)
            line(what, "one after the other", at_once(settings), one_by_one(settings), clients)
    compare_with_ray()
    compare_choices()
    print("\n| a round of 32 at once | against | costs | quartiles | ms a client |")
    print("|---|---|---|---|---|")
    without = at_once(configure(32, "none"))
    for kind in KINDS:
        settings = configure(32, kind)
        line(f"CEL {kind}", "cross-entropy alone", without, at_once(settings), 32)


def compare_with_ray(clients: int = 100, rounds: int = 6) -> None:
    """Print how long a round and a whole run take on Ray, in wall time, beside here."""
    what = f"{clients} clients at once, CEL plain, wall time"
    change = {"rounds": rounds, "chain.burn-in": 1.0}
    here = time_rounds(configure(clients, "plain", engine="local", **change))
    ray = configure(clients, "plain", engine="ray", **change)
    compared = {"the Ray engine": time_rounds(ray)}
    compared["Flower's simulation on Ray"] = time_rounds(ray, train_by_flower)
    for other, there in compared.items():
        print_row(f"{what}, a round", other, list(zip(here, there, strict=True))[1:], clients)
        whole = sum(there) / sum(here)
        print(f"| {what}, {rounds} rounds with their start | {other} | {whole:.2f} | | |")


def train_by_flower(settings: Settings, folder: Path, show_round: EventCallback) -> None:
    """Train by Flower's own simulation: its pool of actors, a message to one at a time."""
    from flwr.app import Context  # seconds of imports that other benchmarks do without
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    from clients import make_client_app
    from strategies.server_app import train_over_grid

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        train_over_grid(grid, settings, folder, show_round)

    client_app = make_client_app(settings)
    run_simulation(app, client_app, settings.clients, backend_config=BACKEND)


def compare_choices() -> None:
    """Print what `auto` chooses between: nets and images at whose sizes the choice changes."""
    strided = {"net.name": "strided", "net.width": 16}
    cases: dict[str, tuple[int, dict[str, object]]] = {
        "4 clients, MLP, 17 k parameters": (4, {}),
        "4 clients, MLP, 130 k parameters": (4, {"net.width": 1000}),
        "8 clients, MLP, 259 k parameters, batches of 64": (
            8,
            {"net.width": 2000, "local.batch-size": 64},
        ),
        "8 clients, the demo's net, augmented images": (
            8,
            {"net.width": 256, "local.steps": 40, "local.augment": "affine"},
        ),
        "8 clients, convolutions of 8x8": (8, strided),
        "8 clients, convolutions of 28x28": (
            8,
            {**strided, "data.source": "tests.bench.batched:large_images"},
        ),
    }
    for what, (clients, change) in cases.items():
        for kind in ("none", "cluster"):
            settings = configure(clients, kind, **change)
            work = at_once(settings), one_by_one(settings)
            line(f"{what}, CEL {kind}", "one after the other", *work, clients, pairs=5)


def time_rounds(settings: Settings, train: Callable[..., None] = train_on_engine) -> list[float]:
    """Return the seconds of each round of a run, the first with all that is before it."""
    ends = [time.perf_counter()]
    with TemporaryDirectory() as place:
        folder = Path(place) / "run"
        run_folder.create_run(folder, settings)
        train(settings, folder, lambda event: ends.append(time.perf_counter()))
    return [after - before for before, after in pairwise(ends)]


def configure(clients: int, kind: str, **change: object) -> Settings:
    """Return the settings of a federation of so many clients, its loss fully on from round 1."""
    values = {
        "data.source": "tests.bench.batched:images",
        "data.partition": "iid",
        "data.train": EACH * clients,
        "data.validation": 100,
        "data.auxiliary": 100,
        "data.test": 100,
        "clients": clients,
        "rounds": 100,
        "local.steps": 20,
        "prior.mode": "none",
        "strategy.momentum": 0.0,
        "cel.kind": kind,
        "cel.warm-up": 0,
        "cel.schedule": "constant",
    }
    return parse_settings({**values, **change})


def images(data: object) -> tuple[Images, None]:
    """Return random 8x8 images with labels."""
    return draw_images(EACH * max(CLIENTS) + 300, 8), None


def large_images(data: object) -> tuple[Images, None]:
    """Return random 28x28 images with labels."""
    return draw_images(EACH * min(CLIENTS) + 300, 28), None


def draw_images(count: int, side: int) -> Images:
    """Draw images and labels."""
    stream = torch.Generator().manual_seed(0)
    x = torch.rand(count, 1, side, side, generator=stream)
    return Images(x, torch.randint(0, 10, (count,), generator=stream))


def begin(settings: Settings) -> tuple[RoundRequest, Callable[[Iterator[ClientUpdate]], None]]:
    """Return what is asked in round 1, and what makes the next model of the updates."""
    parts = load_splits(settings.data, settings.clients, settings.seed).clients
    flat = build_workspace_net(settings)
    state = init_server_state(flat.vector)
    request = begin_round(
        build_server_parts(settings), state, {k: len(part.y) for k, part in enumerate(parts)}
    )

    def finish(updates: Iterator[ClientUpdate]) -> None:
        finish_round(
            build_server_parts(settings), state, request, updates, device_size=flat.device_size
        )

    return request, finish


def one_by_one(settings: Settings) -> Work:
    """Return a round of clients one after the other, that keep their states."""
    return train_round(settings, 1)


def at_once(settings: Settings) -> Work:
    """Return a round of the same clients at once, as many as fit."""
    return train_round(settings, count_clients_at_once(settings))


def train_round(settings: Settings, count: int) -> Work:
    """Return a round of clients, so many at once."""
    request, finish = begin(settings)
    states: dict[int, State] = {}

    def train() -> Iterator[ClientUpdate]:
        trainer = RoundTrainer(
            build_client_parts(settings),
            request,
            read_state=states.get,
            at_once=count,
            report_obstacle=refuse,
        )
        for client, update in zip(request.weights, trainer.train(), strict=True):
            states[client] = update.state
            yield update

    return lambda: finish(train())


def refuse(reason: str) -> None:
    """End the benchmark: nothing was computed at once."""
    raise RuntimeError(reason)


def line(what: str, other: str, a: Work, b: Work, clients: int, pairs: int = PAIRS) -> None:
    """Print one row: how many times as long b takes as a, and a's time for each client."""
    seconds(a), seconds(b)
    print_row(what, other, [(seconds(a), seconds(b)) for _ in range(pairs)], clients)


def print_row(what: str, other: str, times: list[tuple[float, float]], clients: int) -> None:
    """Print one row of pairs of seconds, ours and the other's."""
    low, middle, high = statistics.quantiles([y / x for x, y in times], n=4)
    typical = 1000 * statistics.median(x for x, _ in times) / clients
    print(
        f"| {what} | {other} | {middle:.2f} | {low:.2f} to {high:.2f} | {typical:.2f} |", flush=True
    )


def seconds(work: Work) -> float:
    """Return the processor time of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    main()
