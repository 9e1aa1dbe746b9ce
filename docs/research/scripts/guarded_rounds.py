"""What a node's guard measures of honest and manipulated models, round by round.

`guarded_rounds.py` trains digits as the scenario `uploads` does, without a
defence and with `cluster`. At some rounds the server hands out the honest model, one that was
trained to leak from there, or one with trap weights; each of the clients measures it on its own
images. Writes docs/results/guarded-rounds.json.
"""

import argparse
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import torch

from clients import measure_leak
from fedcel.attacks import set_trap_weights
from fedcel.data import Images, load_splits
from fedcel.federation import begin_round, finish_round, init_server_state
from fedcel.files import write_json
from fedcel.nets import FlatNet
from fedcel.run_parts import build_client_parts, build_server_parts, init_net
from fedcel.torch_state import make_generator
from hijacked_encoder import hijack_encoder
from sims.bench.scenario import Cell, list_cells, override_seeds, read_scenario
from sims.engines.local import LocalTrainer
from sims.progress import print_line

ROUNDS, SEEDS, BATCH = (1, 5, 10, 24), "0,1,2", 32
CASES = {"none": 8.0, "cluster": 8.0}
"""Variants of the scenario and the strength of the cell that is trained."""


def measure_rounds(cell: Cell) -> list[dict[str, object]]:
    """Return what clients measure of the models that are handed out at `ROUNDS`."""
    s, rows = cell.settings, []
    splits = load_splits(s.data, s.clients, s.seed)
    flat = init_net(s, splits)
    server = init_server_state(flat.vector.clone())
    examples = {client: len(part.y) for client, part in enumerate(splits.clients)}
    with TemporaryDirectory() as folder:
        clients = LocalTrainer(build_client_parts(s), Path(folder))
        for number in range(1, max(ROUNDS) + 1):
            if number in ROUNDS:
                flat.load(server.model)
                for kind, net in manipulate(flat, splits.auxiliary, s.seed, number).items():
                    leaks = [
                        measure_leak(
                            net.net, *part, make_generator(s.seed, "guard", number, client)
                        )
                        for client, part in enumerate(splits.clients)
                    ]
                    rows.append(
                        {
                            "variant": cell.variant.name,
                            "noise": s.net.noise,
                            "round": number,
                            "model": kind,
                            "seed": s.seed,
                            "bits-beyond-label": fmean(leak.bits for leak in leaks),
                            "upper": fmean(leak.upper for leak in leaks),
                            "cap": fmean(leak.cap for leak in leaks),
                            "refused-at-1": fmean(leak.upper > 1 for leak in leaks),
                            "command": "python docs/research/scripts/guarded_rounds.py",
                        }
                    )
            request = begin_round(build_server_parts(s), server, examples)
            updates = clients.train(request)
            server, _report = finish_round(
                build_server_parts(s), server, request, updates, device_size=flat.device_size
            )
    return rows


def manipulate(flat: FlatNet, auxiliary: Images, seed: int, number: int) -> dict[str, FlatNet]:
    """Return the honest model and what a malicious server makes of it."""
    stream = make_generator(seed, "hijack", number)
    hijacked = hijack_encoder(flat.net, auxiliary, stream)
    trapped = set_trap_weights(flat.net, auxiliary.x, BATCH, stream)
    return {"honest": flat, "hijacked": FlatNet(hijacked), "trapped": FlatNet(trapped)}


def main() -> None:
    """Train and measure all cases; write their rows."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, default=Path("docs/results/guarded-rounds.json"))
    given = options.parse_args()
    torch.set_num_threads(1)
    scenario, _ = override_seeds(read_scenario("uploads"), {"bench.seeds": SEEDS})
    rows = []
    for cell in list_cells(scenario, {}):
        if CASES.get(cell.variant.name) == cell.strength:
            rows += measure_rounds(cell)
            print_line(f"{cell.name}: {rows[-3:]}")
    write_json(given.out, rows)


if __name__ == "__main__":
    main()
