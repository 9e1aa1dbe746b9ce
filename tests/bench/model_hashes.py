"""Hashes of the models of six short runs: does a change of the code change any bit?

    python -m tests.bench.model_hashes [CHECKOUT]...

Trains with the command line of each checkout (this one by default), side by side in one table, with
the largest difference between a parameter of the first and of the others. Clients are trained one
after the other, and at once in a last column; a checkout without `local.at-once` has its loop.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

Model = dict[str, NDArray[np.float32]]
AT_ONCE = 4

SHORT = {"rounds": 12, "clients": 4, "local.steps": 3, "cel.warm-up": 2}
SAMPLED = {"chain.burn-in": 0.5, "cel.ramp": 0.4, "temperature": 1.0}
RUNS: dict[str, dict[str, object]] = {
    "plain": {"cel.kind": "plain"},
    "cluster": {"cel.kind": "cluster", "cel.clusters": 3},
    "gated": {"cel.kind": "gated"},
    "adversarial": {"defence.name": "adversarial", "defence.strength": 1.0},
    "head sampling": {"cel.kind": "plain", "chain.scope": "head", **SAMPLED},
    "control variate": {"cel.kind": "plain", "local.control": "fresh", **SAMPLED},
}


def train_model(checkout: Path, settings: dict[str, object]) -> Model:
    """Train with a checkout's command line; return its last model."""
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "run"
        command = [sys.executable, "-m", "sims", "simulate", "digits"]
        subprocess.run(
            [*command, "--out", str(out), *words],
            cwd=checkout,
            env=environment,
            check=True,
            capture_output=True,
        )
        return load_file(out / "model.safetensors")


def choose_engine(checkout: Path, at_once: int) -> dict[str, object]:
    """Return the engine's settings; before there was `local.at-once` they were names."""
    if "at_once" in (checkout / "fedcel/settings/local.py").read_text():
        return {"engine": "local", "local.at-once": at_once}
    return {"engine": "loop" if at_once == 1 else "batched"}


def hash_model(tensors: Model) -> str:
    """Return 16 hex digits of a model."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(tensors[name].tobytes())
    return digest.hexdigest()[:16]


def describe(model: Model, first: Model) -> str:
    """Return a model's hash and how far it is from the first."""
    gap = max(float(np.abs(model[name] - first[name]).max()) for name in first)
    return f"{hash_model(model)} ({gap:.1g})"


def main() -> None:
    """Print the table."""
    checkouts = [Path(word).resolve() for word in sys.argv[1:]] or [Path.cwd()]
    columns = [(place, 1) for place in checkouts] + [(checkouts[-1], AT_ONCE)]
    titles = [f"{place.name}, {count} at once" for place, count in columns]
    print("| run | " + " | ".join(titles) + " |")
    print("|---" * (len(titles) + 1) + "|")
    for title, settings in RUNS.items():
        models = [
            train_model(place, {**SHORT, **settings, **choose_engine(place, count)})
            for place, count in columns
        ]
        cells = [describe(model, models[0]) for model in models]
        print(f"| {title} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
