"""Train and attack every cell of a scenario; go on where it stopped."""

import statistics
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import torch

from fedcel import runs
from fedcel.errors import RunError, SettingsError
from fedcel.files import read_json, write_json, write_whole
from sims import report
from sims.attack import Rows, attack
from sims.cost import train_step_ratio
from sims.progress import say
from sims.scenario import Cell, Scenario
from sims.simulate import simulate


def bench(scenario: Scenario, cells: list[Cell], folder: Path, jobs: int = 1) -> Path:
    """Return the report of all cells, each trained and attacked once, whatever interrupts.

    SettingsError for several jobs on the Ray engine, which is parallel itself; RunError when a
    cell's folder holds a run of other settings.
    """
    if jobs > 1 and any(cell.settings.engine == "ray" for cell in cells):
        raise SettingsError(f"--jobs is {jobs}: Ray is parallel itself; add --engine loop")
    write_whole(folder / "scenario.toml", scenario.path.read_text())
    missing = [cell for cell in cells if not finished(folder / "runs" / cell.name, cell)]
    if len(missing) < len(cells):
        say(f"{len(cells) - len(missing)} of {len(cells)} cells are finished already: skipped")
    begin = time.monotonic()
    for done, name in enumerate(work(missing, folder, jobs), 1):
        left = (time.monotonic() - begin) / done * (len(missing) - done)
        say(f"finished {name} ({done}/{len(missing)}), about {left:.0f} s left")
        write_json(folder / "bench.json", rows(cells, folder))
    write_json(folder / "bench.json", rows(cells, folder))
    return report.write(folder)


def finished(folder: Path, cell: Cell) -> bool:
    """Say whether a cell is trained and attacked; RunError if the folder is of other settings."""
    if not folder.exists():
        return False
    if runs.read_settings(folder) != cell.settings:
        raise RunError(f"{folder} was made with other settings; choose another --out or remove it")
    return (folder / "attacks.json").exists()


def work(cells: list[Cell], folder: Path, jobs: int) -> Iterable[str]:
    """Yield the name of each cell as it is finished."""
    if jobs == 1:
        yield from (one(cell, folder) for cell in cells)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(one, cell, folder) for cell in cells]
        yield from (future.result() for future in as_completed(futures))


def one(cell: Cell, folder: Path) -> str:
    """Train and attack one cell."""
    torch.set_num_threads(1)
    place = folder / "runs" / cell.name
    if not (place / "result.json").exists():
        simulate(cell.settings, place, resume=place.exists(), title=cell.name)
    attack(place, title=cell.name)
    return cell.name


def rows(cells: list[Cell], folder: Path) -> Rows:
    """Return bench.json: one row per finished cell, the worst trained attack in each."""
    found = []
    for cell in cells:
        place = folder / "runs" / cell.name
        if (place / "attacks.json").exists():
            found.append(row(cell, place, folder))
    return found


def row(cell: Cell, place: Path, folder: Path) -> dict[str, object]:
    """Return one cell's row."""
    result, attacks = read_json(place / "result.json"), read_json(place / "attacks.json")
    if not isinstance(result, dict) or not isinstance(attacks, list):
        raise RunError(f"{place}: result.json or attacks.json is damaged; remove the folder")
    copied = (
        "accuracy",
        "bits-beyond-label",
        "information-bits",
        "identification-optimal",
        "certificate-bits",
        "candidates",
    )
    return {
        "variant": cell.variant.name,
        "title": cell.variant.title,
        "strength": cell.strength,
        "seed": cell.settings.seed,
        "engine": cell.settings.engine,
        "noise": cell.settings.net.noise,
        **{key: result[key] for key in copied},
        **worst(attacks),
        "train-step-ratio": train_step_ratio(cell.settings),
        "run": str(place.relative_to(folder)),
    }


def worst(attacks: Rows) -> dict[str, object]:
    """Return the scores of the trained attack that rebuilt images best, mean over its seeds."""
    trained: dict[str, Rows] = {}
    for entry in attacks:
        if "mse" in entry:
            trained.setdefault(str(entry["attack"]), []).append(entry)
    if not trained:
        return {"worst-attack": None}

    def mean(name: str, key: str) -> float:
        return statistics.fmean(float(str(entry[key])) for entry in trained[name])

    name = min(trained, key=lambda attack: mean(attack, "mse"))
    keys = ("mse", "psnr", "ssim", "identification-1", "oracle-mse", "mean-mse")
    return {"worst-attack": name, **{key: mean(name, key) for key in keys}}
