"""Read all that a report shows of a run folder or a bench folder."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks import AttackRow
from fedcel.errors import RunError, SettingsError
from fedcel.files import read_tensors
from fedcel.runs import GUESSES_FILE, run_folder
from fedcel.settings import Settings
from sims.results.attack_results import average_attacks, read_pictures, read_results
from sims.results.bench_rows import (
    ImageVectors,
    hold_to_common,
    read_bench_rows,
    read_image_vectors,
)
from sims.results.records import (
    ATTACKS_FOLDER,
    BENCH_FILE,
    EVENTS_FILE,
    FAILED_FILE,
    LIVE_FILE,
    RESULT_FILE,
    BenchRow,
    FailedCell,
    LiveRow,
    RoundEvent,
    RunMeasures,
    RunResult,
    parse_events,
    parse_file,
    read_record,
    read_records,
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
    """Originals, class means and reconstructions."""
    guesses: dict[str, Tensor] = field(default_factory=dict)
    """The optimal attacker's at a few messages; {} for runs that were measured without them."""


@dataclass(frozen=True)
class Book:
    """A bench, or one run as a bench of one row."""

    title: str
    rows: Sequence[BenchRow]
    """Each held to the worst attack that all have met."""
    runs: dict[str, FinishedRun]
    failed: Sequence[FailedCell] = ()
    images: ImageVectors = field(default_factory=dict)
    """Scores of each test image; {} where they were not kept."""


def read_book(folder: Path) -> Book:
    """Return a bench or run folder; RunError names what is missing or damaged."""
    if folder.is_file():
        raise RunError(f"{folder} is a file; give the folder that it is in")
    if (folder / BENCH_FILE).exists():
        return read_bench(folder)
    if (folder / RESULT_FILE).exists():
        run = read_finished(folder)
        return Book(run.name, hold_to_common([make_run_row(run, folder)]), {"": run})
    if (folder / "settings.toml").exists():
        raise RunError(
            f"{folder}: no {RESULT_FILE}; the run is unfinished, resume it with --resume"
        )
    raise RunError(
        f"{folder}: neither {BENCH_FILE} nor {RESULT_FILE} is there; "
        "give a folder that `fedcel bench` or `fedcel simulate` wrote"
    )


def read_bench(folder: Path) -> Book:
    """Return a bench; RunError names what is missing or damaged."""
    rows = read_bench_rows(folder)
    scenario = folder / "scenario.toml"
    title = parse_file(scenario, tomllib.loads).get("title") if scenario.exists() else None
    return Book(
        title=str(title or folder.resolve().name),
        rows=rows,
        runs={row.run: read_finished(folder / row.run) for row in rows},
        failed=read_records(folder / FAILED_FILE, FailedCell),
        images=read_image_vectors(folder),
    )


def make_run_row(run: FinishedRun, folder: Path) -> BenchRow:
    """Return the bench row of a single run."""
    return BenchRow.model_validate(
        {
            **run.result.model_dump(include={*RunMeasures.model_fields}),
            "variant": "this run",
            "title": run.name,
            "undefended": False,
            "run": "",
            "seed": run.settings.seed,
            "noise": run.settings.defence.find_sigma(run.settings.net),
            "attacks": average_attacks(read_results(folder)),
        }
    )


def read_finished(folder: Path) -> FinishedRun:
    """Return one finished run; attacks and reconstructions may be absent, nothing else."""
    try:
        settings = run_folder.read_settings(folder)
    except (SettingsError, OSError) as error:
        path = folder / "settings.toml"
        raise RunError(f"{path} is damaged: {error}; run it again") from None
    guesses = folder / GUESSES_FILE
    return FinishedRun(
        name=folder.resolve().name,
        settings=settings,
        events=parse_file(folder / EVENTS_FILE, parse_events),
        result=read_record(folder / RESULT_FILE, RunResult),
        attacks=tuple(row for result in read_results(folder) for row in result.rows),
        images=read_images(folder),
        guesses=read_tensors(guesses)[0] if guesses.exists() else {},
    )


def read_images(folder: Path) -> dict[str, Images]:
    """Return originals, class means and reconstructions of a run; RunError on other values."""
    images = {name: value.float().numpy() for name, value in read_pictures(folder).items()}
    for name, value in images.items():
        if not (value.size and value.min() >= -1e-4 and value.max() <= 1 + 1e-4):
            place = folder / ATTACKS_FOLDER
            raise RunError(f"{place}: {name!r} must hold values in [0, 1]; attack the run again")
    return images


def read_live(folder: Path) -> list[list[LiveRow]]:
    """Return the attacks on a run's service by price, cheapest first; RunError on damage.

    Rows of one price differ in the attack's seed only.
    """

    def price(row: LiveRow) -> tuple[str, float, str, int]:
        return row.mechanism, row.epsilon, row.attack, row.answers

    rows = read_records(folder / LIVE_FILE, LiveRow, "remove it, attack again")
    return [list(group) for _, group in groupby(sorted(rows, key=price), price)]
