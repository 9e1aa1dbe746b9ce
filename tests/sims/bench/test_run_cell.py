"""Cells on Ray, attacked in another process while the next are trained."""

from contextlib import nullcontext
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import pytest

from fedcel.errors import DataError, FedcelError
from fedcel.files import read_json
from sims.bench import run_cell, scenario
from sims.engines.choose_engine import EngineChoice
from sims.results.attack_results import read_attack_rows
from tests.sims.small import QUICK


def plan_cells(folder: Path, *settings: str) -> list[scenario.Cell]:
    """Return cells of variants v0, v1, ... with these settings."""
    path = folder / "s.toml"
    variants = [
        f"[[variant]]\nname = 'v{number}'\nsettings = {{ {given} }}\n"
        for number, given in enumerate(settings)
    ]
    path.write_text("".join(variants))
    return scenario.list_cells(
        scenario.read_scenario(str(path)), QUICK | {"privacy.mechanism": "none"}
    )


def attacked(place: Path) -> list[dict[str, object]]:
    """Return the rows of all attacks on a run without their times."""
    rows = sorted((row.to_json() for row in read_attack_rows(place)), key=str)
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def finish(
    cells: list[scenario.Cell], folder: Path, jobs: int = 1
) -> dict[str, FedcelError | None]:
    """Return each cell's error, by its name."""
    return {cell.name: error for cell, error in run_cell.finish_cells(cells, folder, jobs)}


@pytest.fixture
def _overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Overlap cells as on Ray, though they are trained by the engine `local`."""
    monkeypatch.setattr(run_cell, "choose_engine", lambda settings: EngineChoice("ray", "asked"))
    monkeypatch.setattr("sims.engines.ray.keep_ray", nullcontext)
    forking = get_context("forkserver")  # one import of torch for all processes
    forking.set_forkserver_preload(["sims.bench.run_cell", "fedcel.attacks.runner"])
    monkeypatch.setattr("sims.parallel_jobs.get_context", lambda _: forking)


@pytest.mark.usefixtures("_overlap")
def test_overlapped_cells_have_the_rows_of_those_one_after_the_other(tmp_path: Path) -> None:
    """One that cannot be trained is named; no process and no thread is left."""
    cells = plan_cells(tmp_path, "temperature = 1.0", "clients = 1790", "net = { noise = 0.4 }")
    before = set(active_children())
    outcomes = finish(cells, tmp_path / "a")
    assert set(active_children()) == before
    assert isinstance(outcomes.pop("v1-0"), DataError)
    assert outcomes == {"v0-0": None, "v2-0": None}
    for cell in (cells[0], cells[2]):
        run_cell.run_cell(cell, tmp_path / "b")
        first, second = (tmp_path / side / "runs" / cell.name for side in "ab")
        assert attacked(first) == attacked(second) != []
        assert read_json(first / "cost.json") == {"train-step-ratio": 1.0}
        results: list[Any] = [read_json(place / "result.json") for place in (first, second)]
        assert results[0]["bits-beyond-label"] == results[1]["bits-beyond-label"]


@pytest.mark.usefixtures("_overlap")
def test_an_interruption_ends_the_other_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, in the middle of an attack."""
    cells = plan_cells(tmp_path, "temperature = 1.0", "seed = 0")
    before, train_cell = set(active_children()), run_cell.train_cell

    def train(cell: scenario.Cell, folder: Path) -> None:
        if cell is cells[1]:
            raise KeyboardInterrupt
        train_cell(cell, folder)

    monkeypatch.setattr(run_cell, "train_cell", train)
    with pytest.raises(KeyboardInterrupt):
        finish(cells, tmp_path / "a")
    assert set(active_children()) == before
