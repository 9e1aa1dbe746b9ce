"""Accuracy that each rule keeps among hostile clients: `robustness.py`.

Digits at ten clients, point training; 1, 2 or 3 of them hostile, drawn anew with each seed. Prints
progress, and at the end a table; writes every run's accuracy to docs/results/robust.json, and keeps
the rows of rules of earlier versions there.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from fedcel.data import Images, load_splits
from fedcel.federation import (
    ClientUpdate,
    RoundRequest,
    begin_round,
    finish_round,
    init_server_state,
)
from fedcel.files import read_json, write_json
from fedcel.metrics import calibration
from fedcel.posterior.predict import predict
from fedcel.run_parts import (
    build_client_parts,
    build_server_parts,
    build_workspace_net,
    init_net,
    select_client_images,
)
from fedcel.settings import Settings, parse_settings
from fedcel.torch_state import make_generator
from sims.engines.local import LocalTrainer
from sims.parallel_jobs import run_items
from sims.progress import print_line
from sims.report.table import format_estimate, format_markdown, make_table
from sims.results.columns import ACCURACY
from sims.results.intervals import estimate

CLIENTS, SEEDS = 10, (0, 1, 2)
COMMON = {
    "clients": CLIENTS,
    "rounds": 40,
    "temperature": 0.0,
    "prior.mode": "none",
    "chain.scope": "full",
    "local.steps": 10,
    "local.rate": 1.2,
    "net.noise": 0.1,
    "strategy.momentum": 0.0,
}
RULES = ("mean", "geometric-median")
BOOST, SPREADS = 10.0, 1.5
Change = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""What a hostile client sends, of its own honest delta and those of the honest clients (m, P)."""
ATTACKS: dict[str, Change | None] = {
    "labels": None,  # trains honestly on wrong labels
    "sign": lambda own, others: -own,
    "scaled": lambda own, others: -BOOST * own,
    "colluding": lambda own, others: others.mean(0) - SPREADS * others.std(0),
}


class Case(NamedTuple):
    """One training."""

    rule: str
    attack: str
    hostile: int
    alpha: float
    seed: int


def train_with_hostile(
    clients: LocalTrainer, request: RoundRequest, who: frozenset[int], change: Change | None
) -> Iterator[ClientUpdate]:
    """Yield each client's update, the hostile ones' made by an attack of all honest deltas."""
    updates = dict(zip(request.weights, clients.train(request), strict=True))
    honest = torch.stack([u.delta for client, u in updates.items() if client not in who])
    for client, update in updates.items():
        if client in who and change is not None:
            yield update._replace(delta=change(update.delta, honest))
        else:
            yield update


def wrong(settings: Settings, who: frozenset[int]) -> Callable[[Settings, int], Images]:
    """Return `client_images` with the next class's label on every image of hostile clients."""
    parts = load_splits(settings.data, settings.clients, settings.seed)

    def images(_: Settings, client: int) -> Images:
        x, y = parts.clients[client]
        return Images(x, (y + 1) % parts.classes) if client in who else Images(x, y)

    return images


def trained(case: Case) -> tuple[Case, float]:
    """Return the accuracy on the test images after the last round."""
    torch.set_num_threads(1)
    own = {"strategy.aggregation": case.rule, "data.alpha": case.alpha, "seed": case.seed}
    s = parse_settings({**COMMON, **own})
    splits, flat = load_splits(s.data, CLIENTS, s.seed), build_workspace_net(s)
    order = torch.randperm(CLIENTS, generator=make_generator(case.seed, "hostile"))
    who = frozenset(order[: case.hostile].tolist())
    server = init_server_state(init_net(s, splits).vector)
    examples = {client: len(part.y) for client, part in enumerate(splits.clients)}
    images = wrong(s, who) if case.attack == "labels" else select_client_images
    change = ATTACKS.get(case.attack)
    parts = build_client_parts(s)._replace(images=lambda client: images(s, client))
    with TemporaryDirectory() as folder:
        clients = LocalTrainer(parts, Path(folder))
        for _ in range(s.rounds):
            request = begin_round(build_server_parts(s), server, examples)
            updates = train_with_hostile(clients, request, who, change)
            server, _report = finish_round(
                build_server_parts(s), server, request, updates, device_size=flat.device_size
            )
            if not server.model.isfinite().all():
                return case, 0.0
    x, y = splits.test
    found = predict(flat, [server.model], x, make_generator(s.seed, "test"), scope=s.chain.scope)
    return case, calibration.score_probabilities(found.probabilities, y)["accuracy"]


def main() -> None:
    """Train every case, print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("--alpha", type=float, default=0.5, help="Dirichlet concentration")
    options.add_argument("--hostile", type=int, nargs="+", default=[1, 2, 3], help="of ten")
    options.add_argument("--out", type=Path, default=Path("docs/results/robust.json"))
    given = options.parse_args()
    attacks = [("none", 0), *((attack, n) for attack in ATTACKS for n in given.hostile)]
    cases = [
        Case(rule, attack, hostile, given.alpha, seed)
        for attack, hostile in attacks
        for rule in RULES
        for seed in SEEDS
    ]
    found: dict[Case, float] = {}
    with closing(run_items(trained, cases, given.jobs)) as running:
        for done, (case, right) in enumerate(running, 1):
            found[case] = right
            if done % 21 == 0:
                print_line(f"{done}/{len(cases)}")
    rows: Any = read_json(given.out) if given.out.exists() else []
    kept = [row for row in rows if row["rule"] not in RULES]
    new = [{**case._asdict(), "accuracy": right} for case, right in found.items()]
    write_json(given.out, [*new, *kept])
    print(table(found, attacks, given.alpha))


def table(found: dict[Case, float], attacks: list[tuple[str, int]], alpha: float) -> str:
    """Return accuracy in percent: a line for each attack and number, a column for each rule."""
    lines = []
    for attack, hostile in attacks:
        cells = [
            format_estimate(
                ACCURACY, estimate(found[Case(rule, attack, hostile, alpha, s)] for s in SEEDS)
            )
            for rule in RULES
        ]
        lines.append([f"{attack}, {hostile} of {CLIENTS}", *cells])
    return format_markdown(make_table("Hostile clients", ["hostile clients", *RULES], lines))


if __name__ == "__main__":
    main()
