"""A synthetic bench folder with the shapes of real ones."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from sims.report import write_report
from sims.results.records import RunResult
from tests.sims.attack_files import save_rows

Make = Callable[..., Path]
CELLS: dict[str, tuple[float, float, float, float]] = {  # accuracy, bits, identification, MSE
    "none": (0.951, 4.46, 0.92, 0.0312),
    "cluster": (0.948, 0.54, 0.22, 0.0425),
    "gated": (0.962, 0.67, 0.25, 0.0419),
}


def attack_rows(mse: float) -> list[dict[str, object]]:
    """Return rows of attacks: the optimal attacker, two attacks x 3 seeds, one skipped.

    And two that rebuild better images from more than one inference: from an upload, from repeats.
    """
    rows: list[dict[str, object]] = [
        {"attack": "optimal", "observation": "smashed", "identification-optimal": 0.5,
         "information-bits": 4.1, "bits-beyond-label": 1.1, "candidates": 397},
        {"attack": "shadow", "observation": "smashed", "skipped": "needs the architecture"},
    ]  # fmt: skip
    for name, seen in (("gradient-inversion", "update"), ("decoder*16", "smashed*16")):
        rows.append({"attack": name, "observation": seen, "knowledge": "held-out", "seed": 0,
                     "budget": 1.0, "mse": mse / 100})  # fmt: skip
    for name, extra in (("decoder", 0.0), ("logit-inversion", 0.006)):
        for seed in range(3):
            value = mse + extra + 0.0002 * seed
            rows.append(
                {"attack": name, "observation": "smashed" if name == "decoder" else "logits",
                 "knowledge": "held-out", "seed": seed, "budget": 1.0, "mse": value,
                 "psnr": -10 * float(np.log10(value)), "ssim": 0.61, "identification-1": 0.21,
                 "identification-5": 0.5, "label-accuracy": 0.93, "mean-mse": 0.0737,
                 "oracle-mse": 0.0434, "seconds": 12.5}
            )  # fmt: skip
    return rows


def result_of(accuracy: float, bits: float, identification: float) -> dict[str, object]:
    """Return result.json."""
    edges = [0.05 + 0.1 * i for i in range(10)]
    bins = {
        "confidence": [None, *edges[1:]],
        "accuracy": [None, *edges[1:]],
        "count": [0, *[9] * 9],
    }
    scores = {"accuracy": accuracy, "nll": 0.171, "ece": 0.012, "brier": 0.07}
    epsilons = {"0.5": 0.31, "1.0": 0.48, "4.0": 0.82, "8.0": 0.93}
    return {
        **scores, "samples": 16, "point": scores | {"nll": 0.204, "ece": 0.034},
        "reliability": {"posterior": bins, "point": bins | {"accuracy": [None, *[0.4] * 9]}},
        "bits-beyond-label": bits, "information-bits": bits + 3.3,
        "identification-optimal": identification, "candidates": 397, "bits-cap": 5.3,
        "identification-candidates": 100, "label-only-identification": 0.1,
        "certificate-bits": bits + 4, "certificate-bits-within-class": bits + 0.25,
        "fano-identification": 0.99,
        "parameters": 17226, "encoder-parameters": 16576,
        "flops-per-inference": 32768, "bytes-per-inference": 256,
        "private": {e: {"accuracy": a, "top1-kept": a + 0.02, "confidence-before": 0.94,
                        "confidence-after": a, "ceiling": 0.99} for e, a in epsilons.items()},
        "class-names": ["cat", "deer"],
        "versions": {"fedcel": "0.1.0", "torch": "2.15.0"}, "seconds": 41.0,
    }  # fmt: skip


@pytest.fixture
def outcome() -> Callable[..., RunResult]:
    """Return a function that makes a result, with the keys given laid over it."""

    def make(**changes: object) -> RunResult:
        over = {key.replace("_", "-"): value for key, value in changes.items()}
        return RunResult.model_validate(result_of(0.9, 2.0, 0.5) | over)

    return make


def write_run(folder: Path, name: str, cell: tuple[float, float, float, float]) -> None:
    """Write one run folder of 40 rounds."""
    accuracy, bits, identification, mse = cell
    folder.mkdir(parents=True)
    weight = 0.0 if name == "none" else 0.3
    (folder / "settings.toml").write_text(
        f"format = 1\nseed = 0\nrounds = 41\n[chain]\nburn-in = 0.8\n[cel]\nweight = {weight}\n"
    )
    events = [
        {"round": r, "accuracy": accuracy * (1 - 0.8 * 0.85**r), "nll": 0.2, "ece": 0.02,
         "clients": 8, "rejected": [{"client": 3, "reason": "not finite"}] if r == 7 else [],
         "within-class-spread": 5 * (0.96 if name == "none" else 0.85) ** r, "seconds": 0.4,
         "rate": 1.0, "temperature": 0.0, "cel-weight": weight * min(1.0, r / 24), "extra": 1}
        for r in range(1, 41)
    ]  # fmt: skip
    (folder / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    (folder / "result.json").write_text(json.dumps(result_of(accuracy, bits, identification)))
    save_rows(folder / "attacks" / "all.json", attack_rows(mse))
    images = np.random.default_rng(0).random((12, 1, 8, 8), dtype=np.float32)
    names = {"targets": 1.0, "class-mean": 0.5, "decoder": 0.8, "logit-inversion": 0.6}
    save_file({key: images * scale for key, scale in names.items()},
              folder / "attacks" / "all.safetensors")  # fmt: skip
    guesses = {
        "targets": images[:8],
        "guesses": np.stack([images[:8], images[1:9], images[2:10]], 1),
        "probabilities": np.tile(np.array([0.6, 0.3, 0.1]), (8, 1)),
        "labels": np.arange(12) % 2,
        "guess-labels": (np.arange(8)[:, None] + np.arange(3)) % 2,
    }
    save_file(guesses, folder / "guesses.safetensors")


def attack_of(mse: float, attack: str = "decoder", **more: object) -> dict[str, object]:
    """Return an attack as a row of bench.json has it."""
    scores = {"mse": mse, "psnr": 15.0, "ssim": 0.6, "identification-1": 0.2}
    scores |= {"oracle-mse": 0.0434, "mean-mse": 0.0737}
    how = {"attack": attack, "observation": "smashed", "knowledge": "held-out", "budget": 1.0}
    return {**how, **scores, **more}


def write_bench(
    folder: Path, cells: dict[str, tuple[float, float, float, float]] = CELLS, seeds: int = 1
) -> Path:
    """Write a bench of `cells` x `seeds` and return its folder."""
    rows = []
    for number, (name, cell) in enumerate(cells.items()):
        for seed in range(seeds):
            run = f"runs/{number}-{seed}"
            moved = (cell[0], cell[1] + 0.02 * seed, cell[2], cell[3])
            write_run(folder / run, name, moved)
            rows.append(
                {"variant": name, "strength": None, "seed": seed, "accuracy": cell[0],
                 "undefended": name == "none", "candidates": 397, "bits-cap": 5.3,
                 "identification-candidates": 100, "label-only-identification": 0.1,
                 "bits-beyond-label": moved[1], "information-bits": cell[1] + 3.3,
                 "identification-optimal": cell[2], "attacks": [attack_of(cell[3])],
                 "certificate-bits": cell[1] + 4, "train-step-ratio": 1.21,
                 "run": run, "engine": "local", "noise": 0.3}
            )  # fmt: skip
    (folder / "bench.json").write_text(json.dumps(rows))
    (folder / "scenario.toml").write_text('title = "Digits: what leaks"\n[settings]\n')
    return folder


@pytest.fixture
def make_bench(tmp_path: Path) -> Make:
    """`write_bench` into a new folder."""
    return partial(write_bench, tmp_path)


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bench with its report, which no test changes."""
    folder = write_bench(tmp_path_factory.mktemp("drawn"))
    write_report(folder)
    return folder
