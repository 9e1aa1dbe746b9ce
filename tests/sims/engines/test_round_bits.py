"""The leak during training: measured every few rounds, and nothing else changes."""

from pathlib import Path

import pytest
import torch

from fedcel.leakage import SmashedData, optimal_leak
from fedcel.runs import read_run
from fedcel.runs.run_folder import has_begun
from sims.bench.run_cell import find_differences
from tests.fedcel.seeded import seeded
from tests.sims.trained import events, model, run

BITS = ("bits-beyond-label", "bits-half-width", "bits-cap")


def test_bits_are_measured_every_few_rounds_and_train_the_same_model(tmp_path: Path) -> None:
    """In rounds 2, 4 and 6 of 6, on validation images; the last round's are those of the model."""
    plain, folder = run(tmp_path / "plain"), run(tmp_path / "bits", **{"bits-every": 2})
    assert torch.equal(model(plain), model(folder))
    lines = events(folder)
    assert [line["round"] for line in lines if "bits-beyond-label" in line] == [2, 4, 6]
    without = [{k: v for k, v in line.items() if k not in BITS} for line in lines]
    assert without == events(plain)
    trained = read_run(folder)
    trained.flat.load(trained.model)
    x, y = trained.splits.validation
    leak = optimal_leak(SmashedData(trained.flat.net), x, y, seeded(1))
    last = lines[-1]
    allowed = 2 * last["bits-half-width"] + 2 * leak.beyond_noise_half_width
    assert last["bits-beyond-label"] == pytest.approx(leak.bits_beyond_label, abs=allowed)
    assert last["bits-cap"] == pytest.approx(leak.cap_beyond_label) and leak.cap_beyond_label > 2


def test_a_run_goes_on_whatever_is_measured(tmp_path: Path) -> None:
    """It is neither another run for --resume, nor another cell for a bench."""
    folder = run(tmp_path / "run")
    settings = read_run(folder).settings
    other = settings.model_copy(update={"bits_every": 3})
    (folder / "result.json").unlink()
    assert has_begun(other, folder)
    assert find_differences(settings, other) == {}
