"""Ratios side by side in one run: `python -m tests.bench.ratios` prints a table.

Each pair is timed in turn, A B A B ..., so that a machine that drifts hits both alike; the ratio
is taken pair by pair and printed as median and quartiles.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.nn.functional import cross_entropy

from fedcel.data import load_splits
from fedcel.federation import (
    RoundRequest,
    RoundTrainer,
    begin_round,
    finish_round,
    init_server_state,
)
from fedcel.federation.local_steps import draw_batches
from fedcel.posterior import RoundOrder
from fedcel.run_parts import (
    build_client_parts,
    build_schedule,
    build_server_parts,
    build_workspace_net,
    init_net,
)
from fedcel.settings import Settings, dump_settings, flatten_settings, parse_settings
from fedcel.torch_state import make_generator
from sims.engines.simulate import simulate

PAIRS = 25
MLP = {"local.steps": 20, "prior.mode": "none", "strategy.momentum": 0.0, "rounds": 100}


def main() -> None:
    """Time every pair and print the table."""
    torch.set_num_threads(1)
    print("| what | against | ratio | quartiles | seconds |\n|---|---|---|---|---|")
    digits = parse_settings(MLP)
    middle = parse_settings({**MLP, "net.width": 512, "local.batch-size": 64})
    wide = parse_settings({**MLP, "net.width": 800, "local.batch-size": 64})
    for name, s in (("17 k", digits), ("66 k", middle), ("0.1 M", wide)):
        rows(f"a round of 8 clients, MLP, {name} parameters", s)
    for kind in ("plain", "cluster", "gated"):
        s = parse_settings({**MLP, "cel.kind": kind})
        line(f"a client's round, CEL {kind}", "cross-entropy alone", client(s), client(digits))
    line("the same small run on Ray", "engine local", whole("ray"), whole("local"), pairs=3)


def rows(what: str, settings: Settings, pairs: int = PAIRS) -> None:
    """Print a round of burn-in, without Langevin noise, and one that samples the whole net."""
    for last, kind in ((False, "burn-in"), (True, "sampling, T 1")):
        s = parse_settings({**flatten_settings(dump_settings(settings)), "chain.scope": "full"})
        number = s.rounds if last else 1
        line(f"{what}, {kind}", "bare in-place loop", engine(s, number), bare(s, number), pairs)


def line(
    what: str, other: str, a: Callable[[], object], b: Callable[[], object], pairs: int = PAIRS
) -> None:
    """Print one row."""
    seconds(a), seconds(b)
    times = [(seconds(a), seconds(b)) for _ in range(pairs)]
    ratios = [x / y for x, y in times]
    low, middle, high = statistics.quantiles(ratios, n=4)
    typical = statistics.median(x for x, _ in times)
    print(
        f"| {what} | {other} | {middle:.3g} | {low:.3g} to {high:.3g} | {typical:.4f} |", flush=True
    )


def seconds(work: Callable[[], object]) -> float:
    """Return the wall time of one call."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def engine(settings: Settings, number: int = 1) -> Callable[[], None]:
    """Return round `number` of clients in turn: local updates, mean, sliding average."""
    parts = load_splits(settings.data, settings.clients, settings.seed).clients
    examples = {k: len(part.y) for k, part in enumerate(parts)}
    flat = build_workspace_net(settings)
    state = init_server_state(flat.vector)._replace(round=number - 1)
    request = begin_round(build_server_parts(settings), state, examples)

    def work() -> None:
        updates = RoundTrainer(build_client_parts(settings), request).train()
        finish_round(
            build_server_parts(settings), state, request, updates, device_size=flat.device_size
        )

    return work


def bare(settings: Settings, number: int = 1) -> Callable[[], None]:
    """Return the same arithmetic as one would write it for this net alone, foreach, in place."""
    parts = load_splits(settings.data, settings.clients, settings.seed).clients
    net = init_net(settings, load_splits(settings.data, settings.clients, settings.seed)).net
    parameters = list(net.parameters())
    for parameter in parameters:
        parameter.data = parameter.data.clone()
        parameter.grad = None
    start = [p.detach().clone() for p in parameters]
    total = sum(len(part.y) for part in parts)

    def work() -> None:
        mean = [torch.zeros_like(p) for p in start]
        for client, (x, y) in enumerate(parts):
            with torch.no_grad():
                torch._foreach_copy_(parameters, start)
            order = draw_batches(y, settings.local, make_generator(0, "batch", number, client))
            stream = make_generator(0, "cut", number, client)
            kicks = make_generator(0, "langevin", number, client)
            plan = build_schedule(settings).plan(RoundOrder(number, total))
            deviation = plan.noise(len(y) / total)
            for batch in order:
                z = net.encoder(x[batch])
                noisy = z + net.cut.sigma * torch.randn(z.shape, generator=stream)
                loss = cross_entropy(net.head(noisy), y[batch])
                grads = torch.autograd.grad(loss, parameters)
                with torch.no_grad():
                    torch._foreach_add_(parameters, grads, alpha=-plan.rate)
                    if deviation:
                        xi = [torch.randn(p.shape, generator=kicks) for p in start]
                        torch._foreach_add_(parameters, xi, alpha=deviation)
            with torch.no_grad():
                delta = torch._foreach_sub(parameters, start)
                torch._foreach_add_(mean, delta, alpha=len(y) / total)
        torch._foreach_add(start, mean)

    return work


def client(settings: Settings) -> Callable[[], None]:
    """Return one client's round with the loss fully on."""
    flat = build_workspace_net(settings)
    parts, request = (
        build_client_parts(settings),
        RoundRequest(
            build_schedule(settings).plan(RoundOrder(70, 997)), flat.vector.clone(), {0: 0.1}
        ),
    )
    (first,) = RoundTrainer(parts, request).train()

    def work() -> None:
        list(RoundTrainer(parts, request, read_state=lambda client: first.state).train())

    return work


def whole(name: str) -> Callable[[], None]:
    """Return a whole run of 30 rounds, start-up and measurement included."""
    settings = parse_settings({**MLP, "engine": name, "local.at-once": 1, "rounds": 30})

    def work() -> None:
        with TemporaryDirectory() as place:
            simulate(settings, Path(place) / "run")

    return work


if __name__ == "__main__":
    main()
