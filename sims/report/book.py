"""Read all that a report shows of a run folder or a bench folder."""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks import AttackRow
from fedcel.errors import RunError, SettingsError
from fedcel.files import read_tensors
from fedcel.losses import defences
from fedcel.posterior import Trace
from fedcel.runs import GUESSES_FILE, run_folder
from fedcel.settings import Settings
from sims.results import (
    ATTACKS_FOLDER,
    BENCH_FILE,
    EVENTS_FILE,
    FAILED_FILE,
    RESULT_FILE,
    BenchRow,
    CellAttack,
    FailedCell,
    ImageVectors,
    RoundEvent,
    RunMeasures,
    RunResult,
    average_attacks,
    parse_events,
    parse_file,
    read_bench_rows,
    read_image_vectors,
    read_pictures,
    read_record,
    read_records,
    read_results,
)

Images = Float[np.ndarray, "N C H W"]


@dataclass(frozen=True)
class FinishedRun:
    """All that the report shows of one run folder."""

    name: str
    settings: Settings
    events: tuple[RoundEvent, ...]
    result: RunResult
    attacks: tuple[AttackRow, ...]
    images: dict[str, Images]
    guesses: dict[str, Tensor] = field(default_factory=dict)
    """The optimal attacker's at a few messages; {} for runs that were measured without them."""
    trace: Trace | None = None
    """What its chain is judged by; without rows where nothing was sampled."""


@dataclass(frozen=True)
class Book:
    """A bench, or one run as a bench of one row."""

    title: str
    kind: Literal["bench", "run"]
    rows: tuple[BenchRow, ...]
    runs: dict[str, FinishedRun]
    failed: tuple[FailedCell, ...] = ()
    images: ImageVectors = field(default_factory=dict)
    """What each test image scores; {} where that was not kept."""


def read_book(folder: Path) -> Book:
    """Return what the bench or run folder holds; RunError says what is missing or damaged."""
    if folder.is_file():
        raise RunError(f"{folder} is a file; give the folder that it is in")
    if (folder / BENCH_FILE).exists():
        return read_bench(folder)
    if (folder / RESULT_FILE).exists():
        run = read_finished(folder)
        return Book(run.name, "run", (make_run_row(run, folder),), {"": run})
    if (folder / "settings.toml").exists():
        raise RunError(
            f"{folder}: no {RESULT_FILE}; the run is unfinished, resume it with --resume"
        )
    raise RunError(
        f"{folder}: neither {BENCH_FILE} nor {RESULT_FILE} is there; "
        "give a folder that `fedcel bench` or `fedcel simulate` wrote"
    )


def read_bench(folder: Path) -> Book:
    """Return a bench; RunError says what is missing or damaged."""
    rows = read_bench_rows(folder)
    failed = read_records(folder / FAILED_FILE, FailedCell)
    runs = {row.run: read_finished(folder / row.run) for row in rows}
    scenario = folder / "scenario.toml"
    title = parse_file(scenario, tomllib.loads).get("title") if scenario.exists() else None
    return Book(
        str(title or folder.resolve().name),
        "bench",
        tuple(rows),
        runs,
        tuple(failed),
        read_image_vectors(folder),
    )


def read_finished(folder: Path) -> FinishedRun:
    """Return one finished run; attacks and reconstructions may be absent, nothing else."""
    return FinishedRun(
        name=folder.resolve().name,
        settings=read_settings(folder),
        events=parse_file(folder / EVENTS_FILE, parse_events),
        result=read_record(folder / RESULT_FILE, RunResult),
        attacks=tuple(row for result in read_results(folder) for row in result.rows),
        images=read_images(folder),
        guesses=read_guesses(folder),
        trace=run_folder.open_trace(folder),
    )


def read_settings(folder: Path) -> Settings:
    """Return a run's settings; RunError where they are damaged."""
    try:
        return run_folder.read_settings(folder)
    except (SettingsError, OSError) as error:
        path = folder / "settings.toml"
        raise RunError(f"{path} is damaged: {error}; run it again") from None


def read_images(folder: Path) -> dict[str, Images]:
    """Return originals, class means and reconstructions of a run; RunError on other values."""
    try:
        images: dict[str, Images] = {
            name: value.numpy() for name, value in read_pictures(folder).items()
        }
    except TypeError as error:  # a type that numpy lacks
        raise RunError(
            f"{folder / ATTACKS_FOLDER} is damaged: {error}; attack the run again"
        ) from error
    for name, value in images.items():
        if not (value.size and value.min() >= -1e-4 and value.max() <= 1 + 1e-4):
            raise RunError(
                f"{folder / ATTACKS_FOLDER}: {name!r} must hold values in [0, 1]; attack the run "
                "again"
            )
    return images


def read_guesses(folder: Path) -> dict[str, Tensor]:
    """Return the optimal attacker's guesses; {} where none were kept, RunError on damage."""
    path = folder / GUESSES_FILE
    return read_tensors(path)[0] if path.exists() else {}


def make_run_row(run: FinishedRun, folder: Path) -> BenchRow:
    """Return the bench row of a single run."""
    measures = {name: getattr(run.result, name) for name in RunMeasures.model_fields}
    attacks: list[CellAttack] = average_attacks(read_results(folder))
    return BenchRow.model_validate(
        {
            **measures,
            "variant": "this run",
            "title": run.name,
            "run": "",
            "seed": run.settings.seed,
            "noise": defences.build_cut(run.settings).sigma,
            "attacks": attacks,
        }
    )
