"""A bench's rows with what its runs have met, and what stands beside them image by image."""

import json
from pathlib import Path

import pytest
import torch

from fedcel import per_image
from fedcel.attacks import AttackOutcome
from fedcel.errors import RunError
from fedcel.settings import AttackSettings
from sims.results.attack_results import write_result
from sims.results.bench_rows import (
    read_bench_rows,
    read_image_vectors,
    update_bench,
    write_bench_rows,
)
from sims.results.intervals import row_vectors
from sims.results.records import BenchRow
from sims.results.worst_attack import hold_to_common, hold_to_common_per_point
from tests.sims.results.made import make_row

ERRORS = {"kernel": (0.05, 0.06), "hybrid": (0.04, None)}
"""Of either cell; one of them has met the stronger attack alone."""


def attack_run(folder: Path, name: str, mse: float, targets: int = 10) -> None:
    """Write what an attack with two seeds scored on a run, each image alike."""
    how: dict[str, object] = {"attack": name, "knowledge": "held-out", "budget": 1.0}
    how |= {"observation": "smashed-data", "targets": targets}
    rows: list[dict[str, object]] = [
        {**how, "seed": seed, "mse": mse + 0.01 * (2 * seed - 1)} for seed in range(2)
    ]
    vectors = {
        per_image.vector_name(row, "mse"): torch.full((targets,), float(str(row["mse"])))
        for row in rows
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_result(
        folder, AttackSettings(names=name, targets=targets), AttackOutcome(rows, {}, vectors)
    )


def bench(folder: Path) -> Path:
    """Write two cells of one variant, attacked, with what their runs keep of ten images."""
    rows = [make_row("v", float(number), run=f"runs/{number}") for number in range(2)]
    for number, row in enumerate(rows):
        for name, errors in ERRORS.items():
            if (mse := errors[number]) is not None:
                attack_run(folder / row.run, name, mse)
        kept = {key: torch.full((10,), 0.5) for key in ("accuracy", "bits-beyond-label")}
        per_image.write_vectors(folder / row.run, kept)
    write_bench_rows(folder, rows)
    return folder


def test_a_row_has_all_attacks_of_its_run(tmp_path: Path) -> None:
    """Mean over the seeds; columns are those of the worst attack that all cells met."""
    rows = read_bench_rows(bench(tmp_path))
    assert [[(a.attack, a.seeds) for a in row.attacks] for row in rows] == [
        [("kernel", 2), ("hybrid", 2)],
        [("kernel", 2)],
    ]
    assert rows[0].attacks[1].mse == pytest.approx(0.04)
    columns = [
        (r["worst-attack"], r["mse"]) for r in json.loads((tmp_path / "bench.json").read_text())
    ]
    assert columns == [("kernel", pytest.approx(0.05)), ("kernel", pytest.approx(0.06))]
    attack_run(tmp_path / "runs" / "1", "hybrid", 0.03)
    update_bench(tmp_path)
    columns = [
        (r["worst-attack"], r["mse"]) for r in json.loads((tmp_path / "bench.json").read_text())
    ]
    assert columns == [("hybrid", pytest.approx(0.04)), ("hybrid", pytest.approx(0.03))]


def test_images_are_of_the_attack_that_a_row_is_held_to(tmp_path: Path) -> None:
    """The report shows the strongest of each cell, tables one that both cells have met."""
    rows = read_bench_rows(bench(tmp_path))
    assert mean_errors(tmp_path, hold_to_common(rows)) == pytest.approx([0.05, 0.06])
    assert mean_errors(tmp_path, hold_to_common_per_point(rows)) == pytest.approx([0.04, 0.06])
    assert row_vectors(rows[0], read_image_vectors(tmp_path)).keys() == {
        "accuracy",
        "bits-beyond-label",
    }


def test_images_are_of_no_other_number_of_targets(tmp_path: Path) -> None:
    """Four targets were attacked after ten: the mean of ten is that of its own ten."""
    bench(tmp_path)
    attack_run(tmp_path / "runs" / "0", "kernel", 0.01, targets=4)
    rows = hold_to_common(update_bench(tmp_path))
    assert mean_errors(tmp_path, rows) == pytest.approx([0.05, 0.06])


def mean_errors(folder: Path, rows: list[BenchRow]) -> list[float]:
    """Return each run's mean error over its images."""
    vectors = read_image_vectors(folder)
    return [float(row_vectors(row, vectors)["mse"].mean()) for row in rows]


def test_a_bench_of_an_earlier_version_says_what_to_do(tmp_path: Path) -> None:
    """Its rows have the worst attack alone."""
    row = make_row().to_json()
    del row["attacks"]
    (tmp_path / "bench.json").write_text(json.dumps([row]))
    with pytest.raises(RunError, match="0.attacks: Field required.*`fedcel bench` again"):
        read_bench_rows(tmp_path)


def test_what_is_read_is_written_again(tmp_path: Path) -> None:
    """No key is lost, and none that a row did not have is added."""
    rows = read_bench_rows(bench(tmp_path))
    written = json.loads((tmp_path / "bench.json").read_text())
    assert [row.to_json() for row in hold_to_common(rows)] == written
    assert "engine" not in written[0] and written[0]["seed"] == 0
