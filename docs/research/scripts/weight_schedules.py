"""Does a weight that follows a goal buy anything? `weight_schedules.py`.

Digits, 8 clients, 60 rounds, five seeds, all of a round's clients at once: ramps to three weights
beside a gamma that follows the validation accuracy, or the spread of the clients' batches. Accuracy
and bits beyond the label are of the validation images; test images are not looked at. It writes
docs/results/weight-schedules.json.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import fedcel
from fedcel.runs import run_folder
from fedcel.settings import parse_settings
from fedcel.torch_state import make_generator
from sims.engines import local

COMMON = {
    "clients": 8,
    "rounds": 60,
    "engine": "local",
    "temperature": 0.0,
    "local.steps": 40,
    "local.augment": "affine",
    "data.validation": 350,
    "data.auxiliary": 50,
    "net.width": 256,
    "net.noise": 0.3,
    "cel.kind": "cluster",
}
FOLLOWING = {"cel.schedule": "target", "cel.weight": 1.0}
STRONGER = FOLLOWING | {"cel.weight": 3.0}
VARIANTS: dict[str, dict[str, object]] = {
    "ramp, weight 0.3": {"cel.weight": 0.3},
    "ramp, weight 1": {"cel.weight": 1.0},
    "ramp, weight 3": {"cel.weight": 3.0},
    "accuracy .95, weight 1": FOLLOWING | {"cel.target": "accuracy", "cel.goal": 0.95},
    "accuracy .95, weight 3": STRONGER | {"cel.target": "accuracy", "cel.goal": 0.95},
    "spread .05, weight 1": FOLLOWING | {"cel.target": "spread", "cel.goal": 0.05},
    "spread .02, weight 3": STRONGER | {"cel.target": "spread", "cel.goal": 0.02},
}
SEEDS = range(5)
DRAWS = 16


def measure(changes: Mapping[str, object], seed: int) -> dict[str, object]:
    """Train a federation and measure its last model on the validation images."""
    settings = parse_settings({**COMMON, **changes, "seed": seed})
    events: list[dict[str, object]] = []
    with TemporaryDirectory() as place:
        folder = Path(place) / "run"
        run_folder.create_run(folder, settings)
        local.train_locally(settings, folder, events.append, measure=False)
        run = run_folder.read_run(folder)
    run.flat.load(run.model)
    x, y = run.splits.validation
    stream = make_generator(seed, "weight-schedules")
    with torch.no_grad():
        z = run.flat.net.encode(x)
        messages = run.flat.net.add_noise(z.repeat(DRAWS, 1), stream)
        right = run.flat.net.answer(messages).argmax(1) == y.repeat(DRAWS)
    leak = fedcel.measure_leakage(
        features=z, labels=y, noise=settings.defence.find_sigma(settings.net)
    )
    return {
        "seed": seed,
        "accuracy": float(right.double().mean()),
        "bits-beyond-label": leak.bits_beyond_label,
        "last-weight": events[-1]["cel-weight"],
        "images": len(y),
        "engine": "local",
    }


def train_variants(variants: Mapping[str, Mapping[str, object]], bench: str) -> None:
    """Train all variants with all seeds, print a line for each, write the bench's rows."""
    rows = []
    for seed in SEEDS:
        for name, changes in variants.items():
            command = f"python docs/research/scripts/{bench}.py"
            rows.append({"variant": name, **measure(changes, seed), "command": command})
            print(" | ".join(str(value) for value in rows[-1].values()), flush=True)
    out = Path(sys.argv[1] if len(sys.argv) > 1 else f"docs/results/{bench.replace('_', '-')}.json")
    out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    train_variants(VARIANTS, "weight_schedules")
