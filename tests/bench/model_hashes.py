"""Hashes of the models of six short runs: does a change of the code change any bit?

    python -m tests.bench.model_hashes [CHECKOUT]...

Trains with the command line of each checkout (this one by default), side by side in one table.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors.numpy import load_file

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


def hash_model(checkout: Path, settings: dict[str, object]) -> str:
    """Train with a checkout's command line; return 16 hex digits of its last model."""
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "run"
        command = [sys.executable, "-m", "sims", "simulate", "digits", "--engine", "local"]
        subprocess.run(
            [*command, "--out", str(out), *words],
            cwd=checkout,
            env=environment,
            check=True,
            capture_output=True,
        )
        tensors = load_file(out / "model.safetensors")
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(tensors[name].tobytes())
    return digest.hexdigest()[:16]


def main() -> None:
    """Print the table."""
    checkouts = [Path(word).resolve() for word in sys.argv[1:]] or [Path.cwd()]
    print("| run | " + " | ".join(place.name for place in checkouts) + " |")
    print("|---" * (len(checkouts) + 1) + "|")
    for title, settings in RUNS.items():
        hashes = [hash_model(place, SHORT | settings) for place in checkouts]
        print(f"| {title} | " + " | ".join(hashes) + " |", flush=True)


if __name__ == "__main__":
    main()
