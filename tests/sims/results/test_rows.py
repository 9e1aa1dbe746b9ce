"""What stands beside a bench's rows, image by image."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from fedcel.attacks import Attacked, AttackRow
from fedcel.runs import per_image
from fedcel.settings import AttackSettings
from sims.results.attack_results import write_result
from sims.results.intervals import Values, read_image_vectors, select_image_vectors
from sims.results.rows import gather_vectors, read_bench_rows

ERRORS = {"kernel": (0.05, 0.06), "hybrid": (0.04, None)}
"""Of either cell; one of them has met the stronger attack alone."""


def bench(folder: Path) -> Path:
    """Write two cells of one variant, attacked, with what their runs keep of ten images."""
    rows, more = [], []
    for number in range(2):
        cell: dict[str, object] = {"variant": "v", "strength": float(number), "seed": 0}
        cell |= {"accuracy": 0.5, "bits-beyond-label": 1.0, "run": f"runs/{number}"}
        rows.append(cell)
        kept = {key: torch.full((10,), 0.5) for key in ("accuracy", "bits-beyond-label")}
        for name, errors in ERRORS.items():
            if (mse := errors[number]) is not None:
                met = {"attack": name, "knowledge": "held-out", "budget": 1.0, "targets": 10}
                more.append({**cell, **met, "mse": mse})
                row = {**met, "observation": "smashed-data", "seed": 0}
                vectors = {per_image.vector_name(row, "mse"): torch.full((10,), mse)}
                place = folder / "runs" / str(number)
                place.mkdir(parents=True, exist_ok=True)
                attacked = Attacked([AttackRow.from_dict(row)], {}, vectors)
                write_result(place, AttackSettings(names=name), attacked)
        per_image.write_vectors(folder / "runs" / str(number), kept)
    (folder / "bench.json").write_text(json.dumps(rows))
    (folder / "escalated.json").write_text(json.dumps(more))
    return folder


def test_images_of_tables_are_of_the_attack_that_tables_compare(tmp_path: Path) -> None:
    """The report shows the strongest of each cell, tables one that both cells have met."""
    gather_vectors(bench(tmp_path))
    compared = read_bench_rows(tmp_path, even=True)
    assert [(row["worst-attack"], row["mse"]) for row in compared] == [
        ("kernel", 0.05),
        ("kernel", 0.06),
    ]
    assert [row["worst-attack"] for row in read_bench_rows(tmp_path)] == ["hybrid", "kernel"]
    assert mean_error(select_image_vectors(tmp_path, compared)) == pytest.approx([0.05, 0.06])
    shown = read_image_vectors(tmp_path)
    assert mean_error(shown) == pytest.approx([0.04, 0.06])
    assert shown["runs/0"].keys() == {"accuracy", "bits-beyond-label", "mse"}


def test_images_of_another_attack_are_left_out(tmp_path: Path) -> None:
    """As in folders that were gathered before a stronger attack, or by another version."""
    gather_vectors(bench(tmp_path))
    rows = [{**row, "mse": 0.01} for row in read_bench_rows(tmp_path, even=True)]
    assert "mse" not in select_image_vectors(tmp_path, rows)["runs/0"]
    assert "accuracy" in select_image_vectors(tmp_path, rows)["runs/0"]


def mean_error(found: Mapping[str, Mapping[str, Values]]) -> list[float]:
    """Return each run's mean error over its images."""
    return [float(found[f"runs/{number}"]["mse"].mean()) for number in range(2)]
