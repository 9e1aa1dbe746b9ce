"""The error of the number that a federated regression answers with.

`python -m tests.bench.regression` trains every variant of the scenario `diabetes` with five seeds,
all of a round's clients at once, and writes docs/results/regression.json: each run's own accuracy
and bits, and the mean absolute error of the number, of the test patients. Beside it stands the
error of who answers everybody with the training patients' mean.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import fedcel
from fedcel.files import read_json
from fedcel.runs import run_folder
from sims.bench.scenario import Cell, list_cells, read_scenario
from sims.engines import local

LEAST, LARGEST = 25.0, 346.0
"""Of the number."""
KEPT = ("accuracy", "bits-beyond-label", "bits-cap", "certificate-bits-within-class")


def measure(cell: Cell) -> dict[str, object]:
    """Train a federation and measure its answers to the test patients."""
    with TemporaryDirectory() as place:
        folder = Path(place) / "run"
        run_folder.create_run(folder, cell.settings)
        local.train_locally(cell.settings, folder, lambda event: None)
        answer = fedcel.Posterior.open(folder)
        splits = answer.run.splits
        probabilities = answer(splits.test.x).probabilities
        result = read_json(folder / "result.json")
    bins = probabilities.shape[1]
    centres = LEAST + (LARGEST - LEAST) / bins * (torch.arange(bins) + 0.5).to(probabilities)
    truth, mean = centres[splits.test.y], centres[splits.training.y].mean()
    assert isinstance(result, dict)
    return {
        "variant": cell.variant.name,
        "title": cell.variant.title,
        "strength": cell.strength,
        "seed": cell.settings.seed,
        "engine": cell.settings.engine,
        **{key: result[key] for key in KEPT},
        "absolute-error": float((probabilities @ centres - truth).abs().mean()),
        "error-of-the-mean": float((mean - truth).abs().mean()),
        "command": "python -m tests.bench.regression",
    }


def main() -> None:
    """Train all, print a line for each, write the rows."""
    rows = []
    for cell in list_cells(read_scenario("diabetes"), {"engine": "local"}):
        rows.append(measure(cell))
        print(" | ".join(str(value) for value in rows[-1].values()), flush=True)
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/results/regression.json")
    out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
